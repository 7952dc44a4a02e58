"""Models as lists of layers: what a layer file says, and what is wrong with one."""

from __future__ import annotations

import json

import pytest

from pagesim.errors import PagesimError
from pagesim.hardware import gpu
from pagesim.models import ModelSpec, from_layers, model
from pagesim.models.layers import FullLayer, IndexerLayer, LatentLayer, StateLayer, WindowLayer
from pagesim.sizing import divide

FULL = '{ kind = "full", kv_heads = 2, head_dim = 64 }'
WEIGHTS = "hidden = 256\nffn = 688\nvocab = 1024\nheads = 4\n"


@pytest.fixture
def read(tmp_path):
    """Returns the model of a layer file: of its list of layers, or of its whole text."""

    def read(
        layers: str = f"[{FULL}]", rest: str = "max_model_len = 4096\n", name: str = "mine.toml"
    ) -> ModelSpec:
        file = tmp_path / name
        file.write_text(f"{rest}layers = {layers}\n" if layers else rest)
        return model(str(file))

    return read


def test_layers_are_listed_in_order_and_repeated_one_by_one_or_as_a_list(read):
    spec = read(
        """[
            { repeat = 2, of = [
                { repeat = 3, kind = "window", kv_heads = 2, head_dim = 64, window = 128 },
                { kind = "full", kv_heads = 4, head_dim = 64 },
            ] },
            { kind = "latent", width = 576 },
        ]"""
    )
    period = (WindowLayer(2, 64, 128),) * 3 + (FullLayer(4, 64),)
    assert spec.cached == spec.cache_layers == (*period, *period, LatentLayer(576))
    assert (spec.name, spec.max_model_len, spec.layers) == ("mine", 4096, 9)


def test_every_field_of_a_layer_may_be_given(read):
    spec = read(
        """[
            { kind = "latent", width = 576, token_bytes = 656 },
            { kind = "indexer", token_bytes = 132 },
            { kind = "state", conv = [3, 3584], state = [24, 128, 256], state_dtype = "fp32", checkpoint = 1,
              always = true, whole = 512 },
        ]""".replace("\n              ", " ")
    )
    state = StateLayer((3, 3584), (24, 128, 256), state_dtype="fp32", checkpoint=1, always=True, whole=512)
    assert spec.cached == (LatentLayer(576, 656), IndexerLayer(132), state)
    assert spec.layers == 2  # the indexer is none by itself


def test_json_says_the_same_as_toml(read):
    content = {
        "max_model_len": 4096,
        "layers": [{"kind": "full", "kv_heads": 2, "head_dim": 64, "repeat": 3}],
    }
    spec = read("", json.dumps(content), "mine.json")
    assert spec.cached == (FullLayer(2, 64),) * 3
    assert spec.cached == read(f"[{{ repeat = 3, of = [{FULL}] }}]").cached


def test_a_model_of_which_only_the_layers_are_known_has_no_weights(read):
    spec = read()
    assert not spec.has_weights
    assert spec.kv_bytes_per_token() == 2 * 2 * 64 * 2
    with pytest.raises(PagesimError, match="model mine says only what its layers keep, not what they weigh"):
        divide(spec, gpu("h100"))


def test_with_its_sizes_it_has_the_weights_that_a_spec_without_layers_has(read):
    spec = read(f"[{{ repeat = 2, of = [{FULL}] }}]", f"max_model_len = 2048\n{WEIGHTS}")
    assert spec.has_weights
    assert spec.parameters == model("tiny").parameters
    assert spec.linear_flops_per_token == model("tiny").linear_flops_per_token


def test_query_heads_say_how_many_gpus_there_may_be(read):
    assert read(rest="max_model_len = 4096\nheads = 16\n").kv_heads_per_gpu(8) == 1
    with pytest.raises(PagesimError, match="tp is 8; mine has 2 heads, so it must be one of 1, 2"):
        read().kv_heads_per_gpu(8)


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ("[]", "layers is empty; a model has at least one"),
        ("3", "has no list of layers; give one"),
        ("[3]", "layers, entry 1 is 3; it must be a table with kind, or with repeat and of"),
        (
            f"[{FULL}, {{ head_dim = 64 }}]",
            "layers, entry 2: kind is None; it must be one of full, window, chunk",
        ),
        ('[{ kind = ["full"] }]', r"kind is \['full'\]; it must be one of"),
        (
            '[{ kind = "swa" }]',
            "kind is 'swa'; it must be one of full, window, chunk, latent, indexer, state",
        ),
        ('[{ kind = "full", kv_heads = 2 }]', "layers, entry 1: head_dim is missing; give it"),
        ('[{ kind = "full", window = 2 }]', "there is no key 'window'; known are kv_heads, head_dim"),
        (
            '[{ kind = "full", kv_heads = 0, head_dim = 64 }]',
            "full layer: kv_heads is 0; it must be a whole",
        ),
        ('[{ kind = "full", kv_heads = "2", head_dim = 64 }]', "kv_heads is '2'; it must be a whole number"),
        (
            '[{ kind = "full", kv_heads = true, head_dim = 64 }]',
            "kv_heads is True; it must be a whole number",
        ),
        (f"[{{ of = [{{ repeat = 0, of = [{FULL}] }}] }}]", "entry 1: of, entry 1: repeat is 0; it must be"),
        (f'[{{ of = [{FULL}], kind = "full" }}]', "'kind' stands beside of"),
        (f"[{{ repeat = 65536, of = [{FULL}, {FULL}] }}]", "there are more than 65536 layers; lower repeat"),
        ("[{ of = " * 8 + "[]" + " }]" * 8, "must be at most 8 lists deep"),
        (
            '[{ kind = "state", conv = [3], state = [4, 4] }]',
            r"state layer: conv is \(3,\); it must be \[",
        ),
        ('[{ kind = "state", conv = [3, 4], state = [] }]', r"state layer: state is \(\); it must be \["),
        (
            '[{ kind = "state", conv = [3, 4], state = [0] }]',
            "state layer: state is 0; it must be a whole",
        ),
        (
            '[{ kind = "state", conv = [3, 4], state = [4], conv_dtype = "int3" }]',
            "must be one of fp32, fp16",
        ),
        (
            '[{ kind = "state", conv = [3, 4], state = [4], checkpoint = 0 }]',
            "state layer: checkpoint is 0",
        ),
        ('[{ kind = "state", conv = [3, 4], state = [4], whole = 5 }]', "at most the 4 channels of conv"),
        ('[{ kind = "latent", width = 576, token_bytes = -1 }]', "latent layer: token_bytes is -1"),
        ('[{ kind = "indexer", token_bytes = 0 }]', "indexer layer: token_bytes is 0"),
    ],
)
def test_a_list_of_layers_that_makes_no_model_is_refused_in_a_sentence(read, layers, sentence):
    with pytest.raises(PagesimError, match=sentence):
        read(layers)


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        ("", "max_model_len is missing; give it"),
        ("max_model_len = 0\n", "max_model_len is 0; it must be a positive number"),
        ('max_model_len = "4k"\n', "max_model_len is '4k'; it must be a whole number"),
        ("max_model_len = 4096\ngated = 1\n", "gated is 1; it must be true or false"),
        ("max_model_len = 4096\nhidden = 256\n", "ffn is 0; it must be a positive number"),
        ("max_model_len = 4096\nlongest = 1\n", "there is no key 'longest'; known are name, layers"),
        ("max_model_len = 4096\ncached = []\n", "cached is no key of a layer file; leave it out"),
        ("max_model_len = 4096\nmoe = 3\n", "moe is 3; it must be a table"),
        ("max_model_len = \n", "is not TOML: Invalid value"),
    ],
)
def test_what_a_model_lacks_beside_its_layers_is_said(read, rest, sentence):
    with pytest.raises(PagesimError, match=sentence):
        read(rest=rest)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(
        PagesimError, match=r"cannot read .*no\.toml: No such file or directory; name a file of"
    ):
        model(str(tmp_path / "no.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PagesimError, match=r"bytes\.toml is not TOML"):
        from_layers(tmp_path / "bytes.toml")


def test_a_config_json_is_still_read_as_one(tmp_path):
    with pytest.raises(PagesimError, match=r"cannot read .*config\.json: No such file"):
        model(str(tmp_path / "config.json"))


def test_gpus_that_share_no_heads_are_refused_with_what_a_layer_file_can_say_of_them(read):
    latent = '[{ kind = "latent", width = 576 }]'
    with pytest.raises(PagesimError, match="must be one of 1; a layer file's heads says how many query head"):
        read(latent).kv_bytes_per_token(tp=8)
    assert read(latent, "heads = 64\nmax_model_len = 4096\n").kv_bytes_per_token(tp=8) == 576 * 2
