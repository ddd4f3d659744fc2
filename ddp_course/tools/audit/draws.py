"""Which samples a loader draws: its sampler, noted while the loop iterates."""

from collections import Counter

from torch.utils.data import DataLoader, DistributedSampler, SequentialSampler, Subset

from ddp_course.tools.audit.log import Epoch, Loader


def follow(recorder, loader, kind):
    """Note the indices that the loader's sampler gives out, an epoch for each iteration.

    Parameters
    ----------
    recorder : Recorder
        Its log gets the epochs; its `undo` what takes the loader back to what it was.
    loader : DataLoader, any other iterable, or None
    kind : str
        "train" or "validation".

    Returns
    -------
    str
        Log.given: "nothing", "stream" (no indices to see), or "indices".
    """
    if loader is None:
        return "nothing"
    if not isinstance(loader, DataLoader) or loader._dataset_kind == 1:
        return "stream"
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    real, log = getattr(loader, attribute), recorder.log
    base, positions = _base_of(loader.dataset)
    log.loaders[kind] = _describe(loader, real, base)

    class Noting:
        def __iter__(self):
            epoch = Epoch(len(log.steps), len(log.inputs))
            log.epochs[kind].append(epoch)
            for drawn in real:
                _note(recorder, epoch, drawn, positions)
                yield drawn
            epoch.whole = True

        def __len__(self):
            return len(real)

        def __getattr__(self, name):
            return getattr(real, name)

        def __setattr__(self, name, value):  # such as batch_sampler.epoch = 3
            setattr(real, name, value)

    object.__setattr__(loader, attribute, Noting())  # DataLoader forbids the plain way
    recorder.undo.append(lambda: object.__setattr__(loader, attribute, real))
    return "indices"


def _describe(loader, real, base):
    sampler = getattr(real, "sampler", None) or loader.sampler  # in a batch sampler, or alone
    distributed = isinstance(sampler, DistributedSampler)
    own = type(real).__module__.split(".")[0] != "torch"  # a sampler that torch doesn't know
    batch = getattr(real, "batch_size", None) or 1
    shuffles = distributed and bool(sampler.shuffle)
    return Loader(
        dataset=id(base),
        length=len(base),
        size=len(loader.dataset),
        distributed=distributed,
        shuffles=shuffles,
        ordered=not own and (isinstance(sampler, SequentialSampler) or distributed > shuffles),
        batch=batch,
        drops=batch - 1 if getattr(real, "drop_last", False) else 0,
        replicas=sampler.num_replicas if distributed else None,
    )


def _note(recorder, epoch, drawn, positions):
    if recorder.log.failed:
        return
    given = drawn if isinstance(drawn, (list, tuple)) else [drawn]
    try:
        epoch.draws += [int(i) if positions is None else int(positions[i]) for i in given]
    except Exception as error:  # the loop goes on with samples that have names, say
        recorder.log.failed = f"the audit can't follow this loop ({error!r:.100})"


def _base_of(dataset):
    """The data set under Subsets, and where our samples are in it."""
    positions = None
    while isinstance(dataset, Subset):
        inner = [int(i) for i in dataset.indices]
        positions = inner if positions is None else [inner[i] for i in positions]
        dataset = dataset.dataset
    seen = Counter()
    for i, at in enumerate(positions or ()):  # a Subset may name a sample twice, on purpose
        positions[i] += len(dataset) * seen[at]
        seen[at] += 1
    return dataset, positions
