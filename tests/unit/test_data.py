"""The loading code for real data sets, on small files in their true format."""

import hashlib
import pickle
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR10

from ddp_course import data
from ddp_course.tools.errors import CourseError


def write_idx(file, array):
    """LeCun's format: two zero bytes, type 8 (uint8), dimensions, sizes, then the data."""
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    file.write_bytes(head + array.astype(np.uint8).tobytes())


def write_mnist(folder):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", 6), ("t10k", 4)):
        write_idx(folder / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (n, 28, 28)))
        write_idx(folder / f"{part}-labels-idx1-ubyte", np.arange(n))


def write_cifar(root, monkeypatch):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    sums = {}
    for name in ["batches.meta", "test_batch", *(f"data_batch_{i}" for i in range(1, 6))]:
        if name == "batches.meta":
            content = {"label_names": [str(i) for i in range(10)]}
        else:
            pixels = rng.integers(0, 256, (3, 3072), dtype=np.uint8)
            content = {"data": pixels, "labels": [0, 1, 2]}
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    train = [[n, sums[n]] for n, _ in CIFAR10.train_list]
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])


def write_jpegs(root, classes=("cat", "dog"), parts=("train", "test")):
    rng = np.random.default_rng(0)
    for part in parts:
        for name in classes:
            (root / part / name).mkdir(parents=True)
            for i in range(2):
                pixels = rng.integers(0, 256, (40 + 20 * i, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.jpg")


def check(images, train, test, classes, shape):
    assert (len(images.train), len(images.test)) == (train, test)
    assert (images.classes, images.shape) == (classes, shape)
    image, label = images.train[train - 1]
    assert image.shape == shape and image.dtype == torch.float32
    assert 0 <= int(label) < classes


def test_digits():
    images = data.load("digits")
    check(images, 1437, 360, 10, (1, 8, 8))
    again = data.load("digits")
    assert torch.equal(images.test.tensors[0], again.test.tensors[0])
    both = [x.numpy().tobytes() for part in images[:2] for x in part.tensors[0]]
    assert len(both) == 1797 and 0 <= images.train.tensors[0].min() <= 1


@pytest.mark.parametrize("name, folder", [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_files(tmp_path, name, folder):
    write_mnist(tmp_path / folder / "raw")
    check(data.load(name, tmp_path), 6, 4, 10, (1, 28, 28))


def test_cifar_files(tmp_path, monkeypatch):
    write_cifar(tmp_path, monkeypatch)
    check(data.load("cifar10", tmp_path), 15, 3, 10, (3, 32, 32))


def test_folder_of_jpegs(tmp_path):
    write_jpegs(tmp_path)
    check(data.load("folder", tmp_path, size=32), 4, 4, 2, (3, 32, 32))


def test_unknown_name():
    with pytest.raises(CourseError, match="choose from digits, mnist"):
        data.load("imagenet")


def test_missing_folder(tmp_path):
    with pytest.raises(CourseError, match="no folder .*train: put JPEGs"):
        data.load("folder", tmp_path)


def test_folder_without_classes(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(CourseError, match="needs a folder for each class"):
        data.load("folder", tmp_path)


def test_empty_class(tmp_path):
    write_jpegs(tmp_path)
    (tmp_path / "train/empty").mkdir()
    with pytest.raises(CourseError, match="needs a folder for each class, with images"):
        data.load("folder", tmp_path)


def test_classes_that_differ(tmp_path):
    write_jpegs(tmp_path)
    write_jpegs(tmp_path, classes=["emu"], parts=["test"])
    with pytest.raises(CourseError, match="differ in class folders: emu"):
        data.load("folder", tmp_path)


def test_broken_mnist(tmp_path):
    write_mnist(tmp_path / "MNIST/raw")
    file = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CourseError, match="delete what is there") as error:
        data.load("mnist", tmp_path)
    assert "\n" not in str(error.value)
