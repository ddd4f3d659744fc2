"""What one rank saw: the record that goes from the recorder over the exchange to the judge.

All of it is numbers and names, so that it can be stored as JSON and judged again.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import NamedTuple


class Gradient(NamedTuple):
    """One parameter's gradient at one step, projected on a fixed random vector.

    The projection is linear: that of an average is the average of the projections.

    Attributes
    ----------
    local : float or None
        Of the gradient as this rank's own backward left it; None: no backward of this step did.
    length : float
        The norm of that gradient.
    reduced : float
        At the end of backward, where DDP has averaged.
    given : float
        At the optimizer's step.
    """

    local: float | None
    length: float
    reduced: float
    given: float


class Backward(NamedTuple):
    """One backward through the model, of maybe several between two steps.

    Attributes
    ----------
    left : float
        The norm of all gradients that were there when it began.
    after : str
        What came right before: "step" of this optimizer, step of "another" one, or "" (neither).
    total : float
        The sum of all projections at its end: alike on all ranks where DDP averaged.
    """

    left: float
    after: str
    total: float


@dataclass
class Step:
    """One step of the optimizer.

    Attributes
    ----------
    gradients : dict of str to Gradient
        By parameter; without those that have none.
    settings : list of dict, or None
        Scalars of each of the optimizer's ``param_groups``; None: as at the step before.
    scale : float or None
        The GradScaler's.
    backwards : list of Backward
        Since the step before, at most 64.
    """

    gradients: dict
    settings: list | None = None
    scale: float | None = None
    backwards: list = field(default_factory=list)


@dataclass
class Loader:
    """What a DataLoader with indices promises.

    Attributes
    ----------
    dataset : int
        Python's id of the data set under Subsets: the same for training and validation?
    length, size : int
        Samples in it, and in what the loader was given.
    distributed, shuffles, ordered : bool
        A DistributedSampler; one that shuffles; a sampler that keeps the order on purpose.
    batch : int
        Samples in one.
    drops : int
        Samples that drop_last may leave out, at most.
    replicas : int or None
        The DistributedSampler's ``num_replicas``.
    """

    dataset: int
    length: int
    size: int
    distributed: bool
    shuffles: bool
    ordered: bool
    batch: int
    drops: int
    replicas: int | None


@dataclass
class Epoch:
    """One iteration over a loader.

    Attributes
    ----------
    steps, inputs : int
        How many of them there were when it began.
    draws : list of int
        Indices into the data set, in order.
    whole : bool
        Whether it came to the sampler's end.
    """

    steps: int
    inputs: int
    draws: list = field(default_factory=list)
    whole: bool = False


class Call(NamedTuple):
    """A collective that the loop itself called.

    Attributes
    ----------
    site : str
        "train.py:30": the first line outside of torch and of the tools.
    kind : str
        "all_reduce".
    dtype : str
        "float32"; "" for a barrier or objects.
    count : int or None
        Elements; None where ranks may differ (objects, uneven splits).
    how : str
        The operation ("SUM") or the root ("from 0").
    group : str
        Name of the group, see Log.groups.
    """

    site: str
    kind: str
    dtype: str
    count: int | None
    how: str
    group: str


@dataclass
class Log:
    """What one rank saw in the block of one `watch`, T steps of the optimizer.

    Attributes
    ----------
    rank : int
        In the default group.
    failed : str or None
        Why the rest (but for the calls) is not to be trusted.
    torch : str
        Its version.
    names : list of str
        The parameters of the model, sorted.
    optimizer : str
        Its class.
    steps : list of Step, T
    states, buffers : list of dict of str to int, T + 1
        Fingerprints before each step and at the end. Also of parameters that only the optimizer
        holds.
    owners : dict of str to [str, bool, bool, bool]
        Of each buffer: class of its module, is that a norm with running statistics, is the
        buffer in the state_dict, has it floats?
    state : dict of str to (int or float)
        Of the optimizer at the end: fingerprints of tensors, and numbers.
    settings : list of dict
        As Step.settings, at the end.
    schedules : list of [str, float]
        Class of each LRScheduler of this optimizer, and how often it stepped.
    without, zeros : list of str
        Parameters in the optimizer that require a gradient and never had one; that had only zeros.
    strides : dict of str to [list of int, list of int]
        Gradients whose strides aren't their parameter's: both.
    wrapped, broadcast : bool or None
        Was there a DDP wrapper; its broadcast_buffers.
    inputs : list of list of int, one list for each training forward
        Fingerprints of the samples of the model's first tensor argument.
    given : str
        What was passed as loader=: "nothing", "stream" (no indices), or "indices".
    loaders, epochs : dict, keys "train" and "validation"
        Loader, and list of Epoch.
    seed : int
        torch.initial_seed() at the start.
    groups : dict of str to list of int
        Ranks of each process group used by calls.
    calls : list of Call
        All different ones.
    sequence : list of int
        The calls in their order, as indices into `calls`.
    graphs : list of str
        Call sites of all_reduce of a tensor that requires grad, before backward.
    alone : str or None
        What `launched.world_of_one` says.
    """

    rank: int = 0
    failed: str | None = None
    torch: str = ""
    names: list = field(default_factory=list)
    optimizer: str = ""
    steps: list = field(default_factory=list)
    states: list = field(default_factory=list)
    buffers: list = field(default_factory=list)
    owners: dict = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    settings: list = field(default_factory=list)
    schedules: list = field(default_factory=list)
    without: list = field(default_factory=list)
    zeros: list = field(default_factory=list)
    strides: dict = field(default_factory=dict)
    wrapped: bool | None = None
    broadcast: bool | None = None
    inputs: list = field(default_factory=list)
    given: str = "nothing"
    loaders: dict = field(default_factory=dict)
    epochs: dict = field(default_factory=lambda: {"train": [], "validation": []})
    seed: int = 0
    groups: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)
    sequence: list = field(default_factory=list)
    graphs: list = field(default_factory=list)
    alone: str | None = None


def to_json(log):
    """A Log as a string.

    Parameters
    ----------
    log : Log

    Returns
    -------
    str
    """
    return json.dumps(asdict(log))


def from_json(text):
    """The Log that `to_json` wrote.

    Parameters
    ----------
    text : str

    Returns
    -------
    Log
    """
    log = Log(**json.loads(text))
    log.steps = [Step(**step) for step in log.steps]
    for step in log.steps:
        step.gradients = {name: Gradient(*row) for name, row in step.gradients.items()}
        step.backwards = [Backward(*row) for row in step.backwards]
    log.loaders = {kind: Loader(**loader) for kind, loader in log.loaders.items()}
    log.epochs = {kind: [Epoch(**e) for e in epochs] for kind, epochs in log.epochs.items()}
    log.calls = [Call(*call) for call in log.calls]
    return log
