"""`--models-config`: errors name file, entry and field before anything starts, and entries get the command line's defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.cli import common, flags
from thalweg.cli.config_file import read_yaml
from thalweg.cli.models_config import read_models
from thalweg.cli.serve import _arguments, settings
from thalweg.errors import ConfigError, ThalwegError

NANO = "{model: thalweg-nano, kv_cache_memory_bytes: 20M"


def read(tmp_path, text, *words):
    file = tmp_path / "models.yaml"
    file.write_text(text)
    namespace = common.parse("serve", ["--models-config", str(file), *words], _arguments, about="", server=True)
    return read_models(
        namespace, common.parser_of("serve", _arguments, server=True), settings(flags.server_settings(namespace))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: []", "models: has 0 entries"),
        ("modles: 3", "unknown field `modles`"),
        (f"max_loaded: 0\nmodels: [{NANO}}}]", "max_loaded: 0 is less than 1"),
        (f"max_loaded: 1\nmodels: [{NANO}, pinned: true}}, {NANO}, name: b}}]", "models[1]: b: max_loaded is 1"),
        (f"memory: 1M\nmodels: [{NANO}}}]", "models[0]: thalweg-nano needs"),
        (
            f"models: [{NANO}}}, {NANO}, name: b, aliases: [thalweg-nano]}}]",
            "models[1]: name 'thalweg-nano' belongs",
        ),
        (f"models: [{NANO}, max_modle_len: 3}}]", "models[0]: max_modle_len: there is no such flag"),
        (f"models: [{NANO}, pinned: maybe}}]", "models[0]: pinned: Expected `bool`"),
        (f"models: [{NANO}, port: 3}}]", "models[0]: port: is a setting of the whole server"),
        (f"models: [{NANO}, idle_seconds: -1}}]", "models[0]: idle_seconds: -1.0"),
        (f"models: [{NANO}, name: a, served_model_name: [b]}}]", "models[0]: name: served_model_name is given too"),
        ("models: [{model: /nowhere}]", "models[0]: model: '/nowhere' does not exist"),
        (f"models: [{NANO}, lora_modules: [a=x]}}]", "models[0]: lora_modules: adapters need enable_lora"),
        (f"models: [{NANO}, enable_lora: true, lora_modules: [a=/nowhere]}}]", "models[0]: lora_modules: '/nowhere' does not"),
        ("models: [{name: a}]", "models[0]: model: must name a directory"),
        (f"models: [{NANO}, name: a, name: b}}]", "the key 'name' is given twice"),
        ("models:\n- &m {model: thalweg-nano, speculative_config: *m}", "models[0]: speculative_config: is not JSON: Circular"),
        ("models: " + "[" * 5000, "has too many levels"),
        (f"models: [{NANO}, name: a, enable_lora: true, lora_modules: [a=x]}}]", "models[0]: name 'a' belongs to models[0]"),
        (
            f"models: [{NANO}, name: a, enable_lora: true, lora_modules: [b=x]}}, {NANO}, name: b}}]",
            "models[1]: name 'b' belongs to models[0]",
        ),
    ],
)
@pytest.mark.sampled(5)
def test_errors_name_the_entry_and_the_field(tmp_path, text, words):
    with pytest.raises(ThalwegError) as caught:
        read(tmp_path, text)
    assert "models.yaml" in str(caught.value)
    assert words in str(caught.value)


def test_a_merged_mapping_may_override_a_key(tmp_path):
    text = f"models:\n- &a {NANO}, name: a}}\n- &b {{<<: *a, name: b}}\n- {{<<: *b, name: c}}"
    assert [e.names for e in read(tmp_path, text).entries] == [("a",), ("b",), ("c",)]


def test_a_device_without_an_end_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match="/dev/zero has more than 1000000 bytes"):
        read_yaml("--models-config", Path("/dev/zero"))


def test_a_flag_of_a_wrong_type_names_the_entry(tmp_path, capsys):
    with pytest.raises(SystemExit):
        read(tmp_path, f"models: [{NANO}, max_model_len: abc}}]")
    assert "models.yaml: models[0]: --max-model-len: 'abc'" in capsys.readouterr().err


def test_an_entry_has_its_own_flags_over_those_of_the_command_line(tmp_path):
    own = "name: a, aliases: [x], seed: 3, response_role: bot"
    text = f"idle_seconds: 5\nmodels: [{NANO}, {own}}}, {NANO}, name: b, pinned: true}}]"
    listed = read(tmp_path, text, "--seed", "1", "--max-model-len", "512", "--port", "0")
    a, b = listed.entries
    assert (a.names, a.args.seed, a.args.max_model_len, a.settings.response_role) == (("a", "x"), 3, 512, "bot")
    assert (b.names, b.args.seed, b.args.max_model_len, b.settings.response_role) == (("b",), 1, 512, "assistant")
    assert (a.idle_seconds, a.pinned, b.pinned) == (5.0, False, True)
    assert a.cost == b.cost
    assert 0 < sum(a.cost.values()) < min(listed.budgets.values())


def test_an_engine_sleeps_without_a_flag_for_it(tmp_path):
    (entry,) = read(tmp_path, f"models: [{NANO}}}]").entries
    assert entry.args.enable_sleep_mode
    assert not entry.args.standby_engine
    with pytest.raises(ConfigError, match="lora_resolver"):
        read(tmp_path, f"models: [{NANO}}}]", "--lora-resolver", "folder", "--lora-root", str(tmp_path))
