"""Pages in a real browser without a window: Chromium, driven through the two pipes of its DevTools protocol, so that nothing but the
browser itself is needed. Each message is JSON with a zero byte behind it."""

import contextlib
import json
import select
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "chrome-headless-shell")
_PATIENCE_SECONDS = 60.0
_SHELL, _PLACE = "/bin/sh", 'exec "$@" 3<&0 4>&1 </dev/null >&2'  # the browser reads from descriptor 3 and writes to 4
# a first start opens windows and asks servers for updates; and a browser of root, as in a container, has no sandbox
_OPTIONS = ("--headless", "--disable-gpu", "--no-first-run", "--no-sandbox", "--disable-background-networking", "--remote-debugging-pipe")


def find_browser() -> str | None:
    """The first browser on the path that can be driven."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """One page, and what the browser has told of it."""

    def __init__(self, process: subprocess.Popen):
        self._process = process
        self._session: str | None = None
        self._number, self._rest = 0, b""
        self.told: list[dict[str, Any]] = []
        """Events, in their order."""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol, and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        message |= {} if self._session is None else {"sessionId": self._session}
        self._process.stdin.write(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.told.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Load a page, and wait until it is whole."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while not self.names("Page.loadEventFired"):
            self.told.append(self._next())

    def names(self, method: str) -> list[dict[str, Any]]:
        """What was told of one kind of event."""
        return [event["params"] for event in self.told if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript, plain JSON."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse on an element, as a reader does."""
        place = f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getClientRects()[0]; return [b.x + 2, b.y + 2] }})()"
        x, y = self.evaluate(place)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._process.stdout], [], [], _PATIENCE_SECONDS)[0]:
                raise TimeoutError(f"the browser said nothing for {_PATIENCE_SECONDS:.0f} s")
            read = self._process.stdout.read(1 << 20)
            if not read:
                raise EOFError("the browser has ended")
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


@contextlib.contextmanager
def browsing(program: str, profile: str) -> Iterator[Page]:
    """A browser with a profile of its own, which ends with the context."""
    words = [_SHELL, "-c", _PLACE, _SHELL, program, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    with (
        open(f"{profile}.log", "wb") as log,
        subprocess.Popen(words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            yield Page(process)
        finally:
            process.kill()
