"""14_train.py, and a rank is killed in the middle of it, once."""

import importlib.util
import os
import signal
from pathlib import Path

STEP, RANK = 130, 1  # a checkpoint is due at 100 and at 200

spec = importlib.util.spec_from_file_location("train", Path(__file__).with_name("14_train.py"))
train = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)


class Mortal(train.Training):
    def one_step(self, ddp, batches):
        first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if first_attempt and self.step == STEP and self.me.rank == RANK:
            os.kill(os.getpid(), signal.SIGKILL)  # no exception, no finally, no goodbye
        return super().one_step(ddp, batches)


if __name__ == "__main__":
    train.Training = Mortal
    train.main()
