"""Small and full-sized copies of MNIST and CIFAR-10 in their published layouts, and a tokenizer that spells."""

import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

Bytes = NDArray[np.uint8]

MNIST_TRAIN = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
MNIST_TEST = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)


def digits(counts: tuple[int, ...], seed: int) -> tuple[Bytes, Bytes]:
    """So many images of each digit in random order; pixel (14, 14) is the digit, the one beside it full ink."""
    y = np.repeat(np.arange(10, dtype=np.uint8), counts)
    np.random.default_rng(seed).shuffle(y)
    x = np.zeros((len(y), 28, 28), dtype=np.uint8)
    x[:, 14, 14], x[:, 14, 15] = y, 255
    return x, y


@pytest.fixture(scope="session")
def full_mnist(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data folder with ``mnist.npz``: as many images of each class as the real one has, all but blank."""
    root = tmp_path_factory.mktemp("full_mnist")
    (x_train, y_train), (x_test, y_test) = digits(MNIST_TRAIN, 0), digits(MNIST_TEST, 1)
    np.savez(root / "mnist.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return str(root)


@pytest.fixture
def small_mnist(tmp_path: Path) -> str:
    """A data folder with ``mnist.npz``: 600 and 100 images, every digit alike."""
    (x_train, y_train), (x_test, y_test) = digits((60,) * 10, 0), digits((10,) * 10, 1)
    np.savez(tmp_path / "mnist.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return str(tmp_path)


@pytest.fixture
def write_binary(tmp_path: Path) -> Callable[..., str]:
    """Write binary batches of CIFAR; the red, green and blue of image i of batch b are b, its label and i."""

    def write(folder: str, files: tuple[str, ...], per_file: int, n_classes: int = 10, coarse: bool = False) -> str:
        (tmp_path / folder).mkdir()
        for number, file in enumerate(files):
            y = np.arange(per_file) % n_classes
            planes = np.stack([np.full(per_file, number), y, np.arange(per_file) % 256], axis=1)
            labels = [y // 5, y] if coarse else [y]
            rows = np.concatenate([np.stack(labels, axis=1), planes.repeat(1024, axis=1)], axis=1)
            (tmp_path / folder / file).write_bytes(rows.astype(np.uint8).tobytes())
        return str(tmp_path)

    return write


@pytest.fixture
def small_cifar(write_binary: Callable[..., str]) -> str:
    """A data folder with the binary batches of CIFAR-10, 40 images in each of the six."""
    files = (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin")
    return write_binary("cifar-10-batches-bin", files, 40)


def write_tokenizer(folder: Path, extra: tuple[str, ...] = ()) -> str:
    """Write a tokenizer whose tokens are letters, as ``save_pretrained`` does, and return its folder."""
    transformers = pytest.importorskip("transformers")
    letters = string.ascii_lowercase + string.digits + string.punctuation
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), *extra]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., str]:
    """What writes a tokenizer to a folder."""
    return write_tokenizer


@pytest.fixture(scope="session")
def speller(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tokenizer that knows letters only, so that what was tokenised can be read again."""
    return write_tokenizer(tmp_path_factory.mktemp("speller"))


@pytest.fixture(scope="session")
def spoken(speller: str) -> Callable[[Tensor], str]:
    """From the token ids of one example to its text; the parts of a pair are joined by " | "."""
    words = (Path(speller) / "vocab.txt").read_text().split("\n")

    def say(ids: Tensor) -> str:
        text = " ".join(words[i] for i in ids.tolist() if i > 0).replace(" ##", "")
        return text.removeprefix("[CLS] ").removesuffix(" [SEP]").replace(" [SEP] ", " | ")

    return say
