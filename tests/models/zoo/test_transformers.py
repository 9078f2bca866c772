"""The transformers zoo: features are those of transformers itself, pooled; nothing but safetensors is opened."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingExtraError
from spurless.models import build, load_weights, save_weights
from spurless.models.zoo.transformers import TransformersConfig

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES: dict[str, dict[str, Any]] = {
    "Bert": {"vocab_size": 40, "max_position_embeddings": 16, **BERT},
    "Roberta": {"vocab_size": 40, "max_position_embeddings": 16, "type_vocab_size": 1, "pad_token_id": 0, **BERT},
    "DistilBert": {"vocab_size": 40, "max_position_embeddings": 16, "dim": 16, "n_layers": 1, "n_heads": 2}
    | {"hidden_dim": 16},
}


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny encoders, as ``save_pretrained`` writes them."""
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("encoders")
    transformers.logging.disable_progress_bar()
    for kind, sizes in SIZES.items():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            net = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes))
        net.save_pretrained(root / kind)
    transformers.logging.enable_progress_bar()
    return root


def pair() -> dict[str, Tensor]:
    ids = torch.tensor([[2, 9, 8, 3, 7, 3, 0, 0], [2, 5, 3, 6, 3, 0, 0, 0]], dtype=torch.int32)
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]], dtype=torch.int32)
    return {"input_ids": ids, "attention_mask": (ids > 0).int(), "token_type_ids": types}


@dataclass(frozen=True)
class Split:
    x: dict[str, Tensor]

    def example(self, n: int = 2) -> dict[str, Tensor]:
        return {key: value[:n] for key, value in self.x.items()}


@dataclass(frozen=True)
class Names:
    labels: tuple[str, ...] = ("a", "b", "c")


@dataclass(frozen=True)
class StubData:
    train: Split
    groups: Names = Names()


def make_data(split: Split) -> Any:
    return StubData(split)


def reference(folder: Path, x: dict[str, Tensor], pool: str) -> Tensor:
    import transformers

    net = transformers.AutoModel.from_pretrained(str(folder)).eval()
    with torch.no_grad():
        states: Tensor = net(**x).last_hidden_state
    if pool == "cls":
        return states[:, 0]
    return torch.stack([row[mask.bool()].mean(dim=0) for row, mask in zip(states, x["attention_mask"], strict=True)])


@pytest.mark.parametrize("pool", ["mean", "cls"])
@pytest.mark.parametrize("kind", list(SIZES))
def test_the_features_are_those_of_transformers(encoders: Path, kind: str, pool: str) -> None:
    x = pair()
    model = build(f"transformers:{encoders / kind}", make_data(Split(x)), pool=pool).eval()
    if kind != "Bert":  # the others cannot tell the parts by types, and are not given them
        x.pop("token_type_ids")
    with torch.no_grad():
        torch.testing.assert_close(model.features(pair()), reference(encoders / kind, x, pool))
        torch.testing.assert_close(model(pair()), model.head(model.features(pair())))
    assert (model.n_features, model.n_classes, model.trained) == (16, 3, False)
    model.verify(pair())


def test_the_types_of_a_pair_reach_the_encoder(encoders: Path) -> None:
    model = build(f"transformers:{encoders / 'Bert'}", make_data(Split(pair()))).eval()
    alike = {**pair(), "token_type_ids": torch.zeros_like(pair()["token_type_ids"])}
    assert not torch.allclose(model(pair()), model(alike))


def test_padding_changes_nothing_wherever_it_is(encoders: Path) -> None:
    model = build(f"transformers:{encoders / 'Bert'}", make_data(Split(pair()))).eval()
    short = {key: value[:1, :6] for key, value in pair().items()}
    torch.testing.assert_close(model(short), model(pair())[:1])
    gap = {"input_ids": torch.tensor([[2, 0, 9, 3]]), "attention_mask": torch.tensor([[1, 0, 1, 1]])}
    first = model.features(gap)
    other = model.features({**gap, "input_ids": torch.tensor([[2, 7, 9, 3]])})
    torch.testing.assert_close(first, other)  # a mask with a gap is obeyed, and no column is cut off
    last = model.features({**gap, "input_ids": torch.tensor([[2, 0, 9, 8]])})
    assert not torch.allclose(first, last)


def test_texts_of_all_lengths_come_back_in_their_order(encoders: Path) -> None:
    lengths = [(7 * i) % 16 + 1 for i in range(40)]  # more than go through the encoder together
    ids = torch.tensor([[2 + (i + k) % 30 if k < n else 0 for k in range(16)] for i, n in enumerate(lengths)])
    x = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    model = build(f"transformers:{encoders / 'Bert'}", make_data(Split(x))).eval()
    torch.testing.assert_close(model.features(x), reference(encoders / "Bert", x, "mean"))


def test_random_weights_come_from_the_seed_and_pretrained_ones_from_the_file(encoders: Path) -> None:
    name = f"transformers:{encoders / 'Bert'}"
    shape: dict[str, Any] = {"input_shape": (8,), "n_classes": 2}

    def weight(**options: Any) -> Tensor:
        return build(name, **shape, **options).get_parameter("backbone.encoder.embeddings.word_embeddings.weight")

    assert torch.equal(weight(seed=0), weight(seed=1))
    assert torch.equal(weight(pretrained=False, seed=0), weight(pretrained=False, seed=0))
    assert not torch.equal(weight(pretrained=False, seed=0), weight(pretrained=False, seed=1))
    assert not torch.equal(weight(pretrained=False), weight())
    heads = [build(name, **shape, seed=seed).head.get_parameter("weight") for seed in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_every_weight_is_trained_and_can_be_kept(encoders: Path, tmp_path: Path) -> None:
    model = build(f"transformers:{encoders / 'Bert'}", make_data(Split(pair())), dropout=0.0).eval()
    model(pair()).logsumexp(dim=1).sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []  # no pooler that nobody reads
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    save_weights(tmp_path / "w.safetensors", model)
    again = build(model.name, **model.options).eval()
    load_weights(tmp_path / "w.safetensors", again)
    assert torch.equal(again(pair()), model(pair()))


def test_features_are_dropped_in_training_only(encoders: Path) -> None:
    model = build(f"transformers:{encoders / 'Bert'}", make_data(Split(pair())), dropout=0.5)
    assert bool((model.train().features(pair()) == 0).any())
    assert torch.equal(model.eval().features(pair()), model.features(pair()))


def test_half_precision_weights_become_single(encoders: Path, tmp_path: Path) -> None:
    import transformers

    transformers.AutoModel.from_pretrained(str(encoders / "Bert")).half().save_pretrained(tmp_path)
    model = build(f"transformers:{tmp_path}", make_data(Split(pair())))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_texts_that_are_too_long_are_refused_with_the_remedy(encoders: Path) -> None:
    with pytest.raises(InputError, match=r"Bert takes at most 16 tokens .got texts of 17.*max_length=16"):
        build(f"transformers:{encoders / 'Bert'}", input_shape=(17,), n_classes=2)
    with pytest.raises(InputError, match=r"does not accept inputs of shape .16,.: .*Use the tokenizer of the encoder"):
        build(f"transformers:{encoders / 'Roberta'}", input_shape=(16,), n_classes=2)  # its positions start at 1


def test_tokens_of_another_tokenizer_are_refused_where_they_can_be_seen(encoders: Path) -> None:
    x = {**pair(), "input_ids": pair()["input_ids"] + 40}
    with pytest.raises(InputError, match=r"does not accept inputs of shape .8,.: .*Use the tokenizer of the encoder"):
        build(f"transformers:{encoders / 'Bert'}", make_data(Split(x)))


def test_only_safetensors_are_opened(encoders: Path, tmp_path: Path) -> None:
    import transformers

    net = transformers.AutoModel.from_pretrained(str(encoders / "Bert"))
    net.config.save_pretrained(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=rf"{tmp_path}: the weights cannot be opened: .*expected .*model.safetensors"):
        build(f"transformers:{tmp_path}", input_shape=(8,), n_classes=2)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.T5Config(d_model=8, num_layers=1, num_heads=1, d_ff=8, vocab_size=10).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is not a plain encoder"):
        build(f"transformers:{tmp_path}", input_shape=(8,), n_classes=2)


def test_hf_is_another_word_for_it(encoders: Path) -> None:
    data = make_data(Split(pair()))
    one, two = (build(f"{word}:{encoders / 'Bert'}", data) for word in ("hf", "transformers"))
    assert (one.name, one.options) == (two.name, two.options)
    assert all(map(torch.equal, one.state_dict().values(), two.state_dict().values()))


@pytest.mark.parametrize("kind", list(SIZES))
def test_a_whole_classifier_brings_its_head(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = getattr(transformers, f"{kind}Config")(**SIZES[kind], num_labels=3)
    net = getattr(transformers, f"{kind}ForSequenceClassification")(sizes).eval()
    net.save_pretrained(tmp_path / "mine")
    x = pair()
    x.pop("token_type_ids")
    model = build(f"hf:{tmp_path / 'mine'}", make_data(Split(x)), classifier=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x), net(**x).logits)
        torch.testing.assert_close(model.head(model.features(x)), net(**x).logits)
    assert model.trained
    untrained = build(f"hf:{tmp_path / 'mine'}", make_data(Split(x)), classifier=True, pretrained=False)
    assert not untrained.trained
    load_weights(tmp_path / "mine" / "model.safetensors", untrained)  # the names of the file fit, too
    torch.testing.assert_close(untrained.eval()(x), model(x))
    save_weights(tmp_path / "ours.safetensors", model)
    load_weights(tmp_path / "ours.safetensors", build(f"hf:{tmp_path / 'mine'}", make_data(Split(x)), classifier=True))


def test_what_is_no_classifier_for_these_data_is_refused(encoders: Path) -> None:
    data = make_data(Split(pair()))
    with pytest.raises(InputError, match="has 2 classes but the data have 3"):
        build(f"hf:{encoders / 'Bert'}", data, classifier=True)
    with pytest.raises(InputError, match="is not a trained classifier: its weights lack"):
        build(f"hf:{encoders / 'Bert'}", replace(data, groups=Names(("a", "b"))), classifier=True)
    with pytest.raises(InputError, match="pool and dropout apply to an encoder"):
        TransformersConfig(classifier=True, pool="cls")


def test_without_transformers_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingExtraError, match=r"The model transformers:minilm needs .* pip install 'spurless\[text\]'"
    ):
        build("transformers:minilm", input_shape=(8,), n_classes=2)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InputError, match=r"dropout.* must be a fraction"):
        TransformersConfig(dropout=1.0)
    with pytest.raises(InputError, match=r"option 'pool' of transformers:minilm cannot be 'max'"):
        build("transformers:minilm", input_shape=(8,), n_classes=2, pool="max")
