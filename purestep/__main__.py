"""Run the command line as `python -m purestep`, which is what torchrun needs."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="purestep")
