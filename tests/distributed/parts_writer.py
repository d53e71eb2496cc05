"""A writer of checkpoints in parts, out of what `checkpoint/` offers: what `SharedCheckpoints(write_part=...)` asks of rank 0."""

import os

import purestep as ps
from purestep.checkpoint.layout import is_training_state
from purestep.checkpoint.root import apply_retention, make_way, refresh_links
from purestep.checkpoint.shards import join_reports
from purestep.checkpoint.staging import commit, staging
from purestep.checkpoint.store import directory_name
from purestep.checkpoint.write import about_state, encode_checked, make_manifest, saving


class PartsCheckpointer(ps.Checkpointer):
    def save_parts(self, state, step, *, write, reason="periodic", metrics=None):
        assert is_training_state(state)
        about = about_state(state, step, run_id=self.run_id, parent_id=self._parent_id, reason=reason)
        path = os.path.join(self.root, directory_name(about.label))
        with saving(path):
            make_way(path, self.run_id)
            with staging(path) as stage:
                manifest = make_manifest(*join_reports(write(stage.path)), about)
                commit(stage, encode_checked(manifest))
        self._parent_id = manifest.checkpoint_id
        refresh_links(self.root, path, self.policy)
        apply_retention(self.root, self.policy, self.run_id)
