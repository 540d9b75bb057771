"""What the README asks of somebody who has a job of their own: `python tests/first_hour.py install` prints a part.

.ci/first_hour runs these parts in an environment of their own, tests/test_first_hour.py the job alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

#: What somebody's own job has beside the lines of the README: a model, data and a rank that is slow.
OWN_JOB = """
import logging, os, time
import torch
from torch import distributed, nn
logging.basicConfig(level=logging.INFO)
torch.set_num_threads(1)
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [torch.ones(8, 64)] * 1010

def train_step(batch):
    train_step.n += 1
    if train_step.n > 990 and distributed.get_rank() == 1:
        time.sleep(0.2)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()

train_step.n = 0
"""


class FirstHour:
    """Commands and code of the README in a checkout."""

    def __init__(self, checkout: Path) -> None:
        readme = (checkout / "README.md").read_text()
        (demo,) = re.findall(r"^(python3 -m venv .* && .*pip install \.) && .*$", readme, re.MULTILINE)
        own = readme.split("## In your own job")[1].split("\n## ")[0]
        (lines,) = re.findall(r"^```python\n(.*?)^```", own, re.DOTALL | re.MULTILINE)
        (diagnose,) = re.findall(r"`(ddp-doctor diagnose [^`]+)`", own)
        assert "`pip install .`" in own
        #: Makes an environment and installs the doctor in it; what puts its commands on the path.
        self.install: str = demo
        (self.activate,) = re.findall(r"`(\. \S+/activate)`", readme)
        #: A training script with the README's lines, and the command that prints its verdict.
        self.script: str = OWN_JOB + lines
        self.diagnose: str = diagnose


if __name__ == "__main__":
    sys.stdout.write(getattr(FirstHour(Path(__file__).parents[1]), sys.argv[1]) + "\n")
