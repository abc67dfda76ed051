"""Settings are laid over each other, validated once, and refused by messages that name them and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.core.config import MAY_CHANGE_ON_RESUME, Clip, Config, flatten, known_settings, nest, resolve
from shoal.core.errors import ConfigError
from shoal.core.length import Length

pytestmark = pytest.mark.unit


def made(**settings: Any) -> Config:
    return resolve(("Trainer(...)", {"global_batch": 8, **settings}))


def test_later_layers_win_and_none_leaves_a_setting_alone() -> None:
    config = resolve(
        ("Trainer(...)", {"global_batch": 8, "seed": 1, "clip": Clip(norm=2.0)}),
        ("--config run.yaml", {"seed": 2, "clip": {"value": 0.5}}),
        ("the command line", {"seed": None, "global_batch": 16, "clip.norm": 3.0}),
    )
    assert (config.global_batch, config.seed, config.clip) == (16, 2, Clip(norm=3.0, value=0.5))


def test_the_length_of_a_higher_layer_replaces_the_other_kind_below() -> None:
    config = resolve(("script", {"global_batch": 8, "epochs": 3}), ("flags", {"steps": 7}))
    assert (config.epochs, config.steps) == (None, 7)
    config = resolve(("script", {"global_batch": 8, "steps": 3}), ("flags", {"epochs": 7}))
    assert (config.epochs, config.steps) == (7, None)


def test_two_lengths_in_one_layer_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="epochs=2 and steps=3 both state the length of the run"):
        made(epochs=2, steps=3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"global_bach": 3}, r"unknown setting 'global_bach' in Trainer\(...\).*did you mean 'global_batch'"),
        ({"clip.nrom": 3}, "unknown setting 'clip.nrom'.*did you mean 'clip.norm'"),
        ({"global_batch": 0}, r"global_batch=0 \(from Trainer\(...\)\).*greater than or equal to 1"),
        ({"workers": 0}, "workers=0.*greater than or equal to 1"),
        ({"clip": {"norm": -1.0}}, r"clip.norm=-1.0"),
        ({"clip": {"weights": (1.0, -1.0)}}, "lower end must be below the upper end"),
        ({"weights": (1.0, 2.0, 3.0), "workers": 2}, "names 3 shares but workers=2"),
        ({"weights": (0.0, 0.0), "workers": 2}, "all zero"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"eval_every": "5 minutes"}, "eval_every='5 minutes'.*not a length of training"),
        ({"checkpoint": {"keep_last": 0}}, "checkpoint.keep_last=0"),
        ({"seed": -1}, "seed=-1"),
        ({"elastic": {"lease_s": 0.4}}, r"elastic.lease_s=0.4 \(from Trainer\(...\)\).*greater than or equal to 0.5"),
    ],
)
def test_a_mistake_is_named_with_its_setting(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        made(**settings)


def test_the_shortest_lease() -> None:
    assert made(elastic={"lease_s": 0.5}).elastic.lease_s == 0.5


@pytest.mark.parametrize(("given", "word"), [(True, "on"), (False, "off"), ("on", "on"), ("auto", "auto")])
def test_what_yaml_makes_of_on_and_off_is_meant_so(given: object, word: str) -> None:
    assert made(comm={"encrypt": given}).comm.encrypt == word
    assert made(balance=False).balance == "off"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"global_batch.* is missing: give it in the Trainer"):
        resolve(("Trainer(...)", {}))


def test_a_message_has_one_line_for_each_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        made(workers=0, seed=-1)
    assert str(caught.value).count(";") == 1


def test_a_configuration_survives_json_and_cannot_be_changed() -> None:
    config = made(epochs=3, clip=Clip(weights=(-1.0, 1.0)), eval_every="50 steps", weights=(1.0,))
    assert Config.model_validate(config.to_json()) == config
    assert config.eval_every == Length(50, "steps")
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


def test_shares_are_equal_where_no_weights_are_given() -> None:
    assert made(workers=3).share_weights == (1.0, 1.0, 1.0)
    assert made(workers=2, weights=[3, 1]).share_weights == (3.0, 1.0)


def test_flattening_and_nesting_are_inverse() -> None:
    settings = {"clip": {"norm": 1, "value": None}, "seed": 3}
    assert flatten(settings) == {"clip.norm": 1, "clip.value": None, "seed": 3}
    assert nest(flatten(settings)) == settings
    with pytest.raises(ConfigError, match="'seed' is a single value"):
        nest({"seed": 1, "seed.low": 2})


def test_what_may_change_on_resume_are_settings_and_nothing_that_decides_the_result() -> None:
    known = {*known_settings(), *(name.split(".")[0] for name in known_settings())}
    assert known >= MAY_CHANGE_ON_RESUME
    deciding = {"global_batch", "seed", "grain", "passes", "init", "clip", "precision"}
    assert not deciding & MAY_CHANGE_ON_RESUME
