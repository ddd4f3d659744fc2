"""Images to train on: the digits that scikit-learn ships, or a real data set by name."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import Dataset, TensorDataset

from ddp_course.results import ROOT
from ddp_course.tools.collectives import all_or_none
from ddp_course.tools.errors import CourseError

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "folder")
# Mean and standard deviation of the training pixels, per channel, in 0..1.
_STATS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "folder": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # ImageNet's, a custom
}


class Images(NamedTuple):
    """A data set in two parts.

    Attributes
    ----------
    train, test : torch.utils.data.Dataset
        Items are (image, label): float32 of ``shape``, int.
    classes : int
    shape : tuple of int
        (channels, height, width) of one image.
    """

    train: Dataset
    test: Dataset
    classes: int
    shape: tuple


def load(name="digits", root=ROOT / "data", size=64):
    """Load a data set; call it on every rank.

    Parameters
    ----------
    name : {"digits", "mnist", "fashion-mnist", "cifar10", "folder"}
        digits needs no network: 1,797 images of 8 × 8, a fifth held out. The
        next three are torchvision's: local rank 0 of each node downloads what
        is missing, the others wait. folder is ``root/train/<class>/*.jpg`` and
        ``root/test/<class>/*.jpg``.
    root : path
        Where downloads go, or the folder.
    size : int
        Pixels, for folder: shorter side scaled to it, centre cut out.

    Returns
    -------
    Images

    Raises
    ------
    CourseError
        Unknown name, or data that is missing or broken; on every rank.
    """
    if name == "digits":
        return _digits()
    root = Path(root)
    if name == "folder":
        return all_or_none(lambda: _folder(root, size))
    if name in NAMES:
        all_or_none(lambda: _torchvision(name, root, download=True), first_of_node=True)
        return all_or_none(lambda: _torchvision(name, root, download=False))
    raise CourseError(f"unknown data set {name!r}: choose from {', '.join(NAMES)}")


def _digits():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    # One fixed split, the same in every process and every lesson.
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    return Images(
        TensorDataset(pixels[train], labels[train]),
        TensorDataset(pixels[test], labels[test]),
        classes=10,
        shape=(1, 8, 8),
    )


def _to_tensor(name, *resize):
    from torchvision.transforms import v2

    mean, std = _STATS[name]
    as_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return v2.Compose([*resize, *as_float, v2.Normalize(mean, std)])


def _torchvision(name, root, download):
    from torchvision import datasets

    kinds = {
        "mnist": (datasets.MNIST, (1, 28, 28)),
        "fashion-mnist": (datasets.FashionMNIST, (1, 28, 28)),
        "cifar10": (datasets.CIFAR10, (3, 32, 32)),
    }
    kind, shape = kinds[name]
    make = {"root": root, "transform": _to_tensor(name), "download": download}
    try:
        return Images(kind(train=True, **make), kind(train=False, **make), 10, shape)
    except Exception as error:  # torchvision raises many kinds, most of them long
        raise CourseError(
            f"{name} in {root} can't be read or downloaded ({_first_line(error)}): "
            "delete what is there and try again with a network, or use the data set digits"
        ) from None


def _folder(root, size):
    from torchvision import datasets
    from torchvision.transforms import v2

    parts = []
    for part in ("train", "test"):
        if not (root / part).is_dir():
            raise CourseError(
                f"no folder {root / part}: put JPEGs into {root}/{part}/<class>/, "
                "or name another folder"
            )
        try:
            resize = (v2.Resize(size), v2.CenterCrop(size))
            parts.append(datasets.ImageFolder(root / part, _to_tensor("folder", *resize)))
        except (FileNotFoundError, OSError) as error:
            raise CourseError(
                f"{root / part} can't be read ({_first_line(error)}): "
                "it needs a folder for each class, with images in it"
            ) from None
    train, test = parts
    if train.classes != test.classes:
        odd = sorted(set(train.classes) ^ set(test.classes))
        raise CourseError(f"{root}: train and test differ in class folders: {', '.join(odd)}")
    return Images(train, test, len(train.classes), (3, size, size))


def _first_line(error):
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
