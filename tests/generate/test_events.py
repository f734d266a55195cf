"""Server-sent events, however they are cut and written."""

import json

import pytest

from pkb.generate.events import Events, texts_of

USAGE = {"prompt_tokens": 100, "completion_tokens": 40}
EVENTS = [
    {"choices": [{"delta": {"reasoning_content": "Hm. "}}]},
    {"choices": [{"delta": {"content": "é漢"}}]},
    {"choices": [{"delta": {"content": "😀"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": USAGE},
]


def lines_of(event, end, indent=None):
    text = json.dumps(event, ensure_ascii=False, indent=indent)
    return "".join(f"data: {line}{end}" for line in text.split("\n"))


def written(end="\n", indent=None, between=None, before=""):
    """The events as bytes; between: what separates them, an empty line by default."""
    between = end if between is None else between
    text = before + "".join(lines_of(event, end, indent) + between for event in EVENTS)
    return (text + f"data: [DONE]{end}{end}").encode()


FORMS = {
    "LF": written(),
    "CRLF": written("\r\n"),
    "CR": written("\r"),
    "an event over several lines": written(indent=1),
    "several lines, CRLF": written("\r\n", indent=1),
    "no empty lines": written(between=""),
    "comments and other fields": written(between="\n: ping\n\nevent: message\nid: 7\nretry: 9\n"),
    "a byte order mark": written(before="\ufeff"),
    "no space": written().replace(b"data: ", b"data:"),
    "junk between": written(between="\ndata: junk\n\ndata: [1]\n\n"),
}


@pytest.mark.parametrize("step", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize("form", FORMS)
def test_what_a_stream_says_does_not_depend_on_its_form(form, step):
    events = Events()
    for at in range(0, len(FORMS[form]), step):
        events.feed(FORMS[form][at : at + step])
    events.end()
    assert (events.text, events.reasoning) == ("é漢😀", "Hm. ")
    facts = events.facts
    assert not events.damaged
    assert (facts.valid, facts.choices, facts.finish_reason, facts.usage, facts.done) == (True, 1, "stop", USAGE, True)


def test_the_end_is_known_when_it_comes_and_not_when_the_connection_closes():
    events = Events()
    events.feed(written("\r\n"))
    assert events.facts.done


def test_a_last_event_without_an_empty_line_counts():
    events = Events()
    events.feed(f"data: {json.dumps(EVENTS[1])}".encode())
    assert events.text == ""
    events.end()
    assert events.text == "é漢"


@pytest.mark.parametrize(
    ("counts", "last"),
    [
        ([{"completion_tokens": 1}, {"completion_tokens": 40}], 40),
        ([{"completion_tokens": 40}, {"completion_tokens": 0}], 40),
        ([{"completion_tokens": 40}, {"completion_tokens": None}], 40),
        ([{"completion_tokens": 40}, None], 40),
        ([{"completion_tokens": 50}, {"completion_tokens": 40}], 40),
    ],
)
def test_of_several_counts_the_last_that_says_something_stands(counts, last):
    events = Events()
    for usage in counts:
        events.feed(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
    assert events.facts.usage["completion_tokens"] == last


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}


@pytest.mark.parametrize(
    ("event", "texts"),
    [
        ({"choices": [{"delta": {"content": [THOUGHT, {"type": "text", "text": "a"}, "b"]}}]}, ("ab", "Hm.")),
        ({"choices": [{"delta": {"content": "a", "reasoning": "Hm."}}]}, ("a", "Hm.")),
        ({"choices": [{"message": {"content": "a", "thinking": "Hm."}}]}, ("a", "Hm.")),
        ({"choices": [{"delta": None}]}, ("", "")),
        ({"choices": [None]}, ("", "")),
        ({"choices": []}, ("", "")),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, ("a", "")),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "Hm."}}, ("", "Hm.")),
        ({"candidates": [{"content": {"parts": [{"text": "Hm.", "thought": True}, {"text": "a"}]}}]}, ("a", "Hm.")),
        ({"candidates": [None]}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_text_and_reasoning_of_an_event(event, texts):
    assert texts_of(event) == texts
