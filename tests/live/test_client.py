"""The HTTP client: what it sends, and every way an answer can be missing or wrong."""

from __future__ import annotations

import pytest
from fake_server import FakeServer
from irminsul.errors import InvalidParams, ServerFailed
from irminsul.live.client import Client


def test_what_a_request_says() -> None:
    server = FakeServer()
    with server.running() as url:
        client = Client(url + "/", api_key="secret")
        client.generate([5, 6, 7], max_tokens=3, key="k", reuse=False, likeliest=2)
        client.generate([5, 6, 7], max_tokens=3)
    first, second = server.requests
    assert first["authorization"] == "Bearer secret"
    assert first["input_ids"] == [5, 6, 7]
    assert first["extra_key"] == "k"
    assert first["top_logprobs_num"] == 2
    assert first["sampling_params"] == {
        "max_new_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "custom_params": {"irminsul": False},
    }
    assert second["sampling_params"].keys() == {"max_new_tokens", "temperature", "ignore_eos"}
    assert not {"extra_key", "return_logprob"} & second.keys()


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_answer_becomes(stream: bool) -> None:
    with FakeServer().running() as url:
        reply = Client(url).generate([10] * 40, max_tokens=2, likeliest=2, stream=stream)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (40, 0, 2)
    assert reply.tokens == (400 % 97, 400 % 97 + 1)
    assert reply.logprobs == (-0.1, -0.1)
    assert reply.first == {400 % 97: -0.1, 400 % 97 + 500: -3.0}
    assert 0 < reply.first_s <= reply.total_s


def test_what_a_server_says_about_itself() -> None:
    server = FakeServer(prefill_attention_backend="fa3", tp_size=8, skip_tokenizer_init=False)
    with server.running() as url:
        info = Client(url).info()
    assert (info.attention, info.ranks, info.takes_text, info.cache) == ("fa3", 8, True, "irminsul")


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://host", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidParams, match="must begin with http"):
        Client(url)


def test_nobody_there() -> None:
    with FakeServer().running() as url:
        pass
    with pytest.raises(ServerFailed, match="no answer from http://127"):
        Client(url).info()


def test_another_kind_of_server() -> None:
    server = FakeServer()
    server.info = {"hello": "world"}
    with server.running() as url, pytest.raises(ServerFailed, match="not answer like an SGLang"):
        Client(url).info()


def test_an_answer_that_is_no_json() -> None:
    with FakeServer().running() as url, pytest.raises(ServerFailed, match="not answer in JSON"):
        Client(url)._json("/metrics")


def test_an_answer_of_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    monkeypatch.setattr(server, "_answer", lambda request, number: {"text": "hello"})
    with server.running() as url, pytest.raises(ServerFailed, match="answered in another form"):
        Client(url).generate([1, 2], max_tokens=1)


def test_a_path_that_is_not_there_names_the_status() -> None:
    with FakeServer().running() as url, pytest.raises(ServerFailed, match="answered 404"):
        Client(url)._json("/absent")
