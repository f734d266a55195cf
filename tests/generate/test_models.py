"""Models as data."""

import dataclasses
import json

import pytest

from pkb.errors import UserError
from pkb.generate import library
from pkb.generate.models import Model, Prices, load_models, names
from pkb.generate.prices import prices_of, question_tokens
from tests.generate.conftest import ask
from tests.generate.server import CODE, Server, answer, error


def test_every_shipped_entry_loads_and_at_least_five_providers_are_there():
    models = load_models(names(), need_keys=False)
    assert len({m.provider for m in models} - {"replay"}) >= 6
    assert {"demo-fast", "demo-slow", "demo-faulty"} <= {m.name for m in models}
    for model in models:
        assert model.provider == "replay" or model.api_base or model.key_env, model


def shipped():
    """Shipped models that somebody is asked for."""
    return [m for m in load_models(names(), need_keys=False) if m.provider != "replay"]


@pytest.mark.parametrize("model", shipped(), ids=lambda m: m.name)
def test_every_shipped_model_passes_through_our_transport_once(model, monkeypatch):
    monkeypatch.setenv(model.key_env or "UNUSED", "sk-some-key-or-other")
    with Server.replying(error(418, "a teapot")) as server:
        (found,) = ask(dataclasses.replace(model, api_base=server.url))
    assert library.carries(model)
    assert len(server.requests) == found.tries == 1
    assert found.error == "request (HTTP 418): a teapot"
    assert f": {model.max_tokens}" in json.dumps(server.requests[0].body)  # under whatever name this provider has for it
    assert "sk-some" not in str(found)


@pytest.mark.parametrize("model", [m for m in shipped() if m.provider not in ("anthropic", "gemini")], ids=lambda m: m.name)
def test_every_shipped_model_with_openais_protocol_is_understood(model, monkeypatch):
    monkeypatch.setenv(model.key_env or "UNUSED", "sk-some-key-or-other")
    with Server.replying(answer()) as server:
        (found,) = ask(dataclasses.replace(model, api_base=server.url))
    assert (found.status, found.answer, found.request_id) == ("ok", CODE, "req-1"), found.error
    assert (found.usage["prompt_tokens"], found.usage["completion_tokens"], found.usage["estimated"]) == (100, 40, False)


def test_every_shipped_model_of_a_provider_has_a_price():
    hosted = [m for m in load_models(names(), need_keys=False) if not m.api_base and m.name != "openrouter"]
    assert len(hosted) > 15 and [m.name for m in hosted if prices_of(m) is None] == []


def entry(tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_of_the_users(tmp_path):
    path = entry(
        tmp_path, "a: {model: openai/x, api_base: 'http://h/v1'}\nb: {model: openai/y, prices: {input: 1, output: 2}}\n"
    )
    assert [m.name for m in load_models([path])] == ["a", "b"]
    (model,) = load_models([f"{path}:b"])
    assert model == Model("b", "openai/y", prices=Prices(1.0, 2.0))


def test_values_may_come_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_BASE", "http://h/v1")
    path = entry(
        tmp_path, "a: {model: openai/x, api_base: '${oc.env:MY_BASE}'}\nb: {model: openai/y, api_base: '${oc.env:MISSING}'}\n"
    )
    assert load_models([f"{path}:a"])[0].api_base == "http://h/v1"
    with pytest.raises(UserError, match="MISSING"):
        load_models([f"{path}:b"])


def test_a_missing_key_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    path = entry(tmp_path, "a: {model: openai/x, key_env: NO_SUCH_KEY}\n")
    with pytest.raises(UserError, match="export NO_SUCH_KEY="):
        load_models([path])
    assert load_models([path], need_keys=False)[0].key() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {model: openai/x, temprature: 1}\n", "unknown key 'temprature'; did you mean 'temperature'"),
        ("a: {model: openai/x, rpm: fast}\n", "rpm='fast': expected int"),
        ("a: {model: openai/x, rpm: -1}\n", "rpm=-1: must be 0 or more"),
        ("a: {model: openai/x, timeout_seconds: 0}\n", "timeout_seconds=0.0: must be more than 0"),
        ("a: {model: openai/x, stream: 1}\n", "stream=1: expected bool"),
        ("a: {model: openai/x, prices: {input: 1}}\n", "output is missing"),
        ("a: {api_base: http://h}\n", "model is missing"),
        ("a: {model: gpt}\n", "expected litellm's form provider/name, e.g. openai/gpt"),
        ("a: {model: openai/x, extra: {timeout: 3}}\n", "extra: 'timeout' is set elsewhere"),
        ("a: 3\n", "expected keys such as model"),
        ("- a\n", "must map model names"),
        ("a: {model: [\n", "not valid YAML"),
    ],
)
def test_a_bad_entry_is_one_clear_line(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        load_models([entry(tmp_path, text)], need_keys=False)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_unknown_names(tmp_path):
    with pytest.raises(UserError, match="did you mean 'demo-fast'"):
        load_models(["demo-fats"])
    with pytest.raises(UserError, match="no file"):
        load_models([str(tmp_path / "none.yaml")])
    with pytest.raises(UserError, match="has no model 'z'; it has: a"):
        load_models([entry(tmp_path, "a: {model: openai/x}\n") + ":z"])


def test_a_name_stands_for_one_model(tmp_path):
    path = entry(tmp_path, "demo-fast: {model: openai/x}\n")
    assert len(load_models(["demo-fast", "demo-fast"])) == 1
    with pytest.raises(UserError, match="two different models are called 'demo-fast'"):
        load_models(["demo-fast", path])


def test_a_question_leaves_room_for_the_answer_in_the_context_window():
    assert question_tokens(Model("m", "openai/gpt-4o", max_tokens=28_000)) == 100_000
    assert question_tokens(Model("m", "openai/gpt-4o", max_tokens=100_000)) == 64_000
    assert question_tokens(Model("m", "openai/nobody-knows-me")) is None


@pytest.mark.parametrize(("provider", "said"), [("opnai", "did you mean 'openai'"), ("our-own-server", "write openai/")])
def test_a_provider_that_litellm_does_not_know_is_named(provider, said):
    from pkb.generate.client import Client
    from tests.generate.conftest import FAST

    with pytest.raises(UserError, match=f"no provider '{provider}'; .*{said}"):
        Client(FAST, [Model("m", f"{provider}/x")])


def test_every_shipped_model_s_provider_is_known():
    for model in load_models(names(), need_keys=False):
        library.check_provider(model)
