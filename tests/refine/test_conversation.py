"""What stays of a conversation that does not fit."""

from pkb.refine.conversation import Turn, messages, tokens

TASK = [{"role": "user", "content": "task"}]


def turns(count, size=300):
    return [Turn(f"answer {i} " + "a" * size, f"code {i}", f"feedback {i}") for i in range(count)]


def shown(found):
    return [m["content"].split("\n")[-1][:10].strip() for m in found]


def test_everything_is_there_while_it_fits():
    found = messages(TASK, turns(3), 1, 10_000)
    assert [m["role"] for m in found] == ["user", "assistant", "user", "assistant", "user", "assistant", "user"]
    assert shown(found)[1::2] == ["answer 0 a", "answer 1 a", "answer 2 a"]


def test_old_turns_go_first_but_never_the_task_the_best_answer_or_the_last_feedback():
    found = messages(TASK, turns(8), 2, 520)
    assert sum(tokens(m["content"]) for m in found) <= 520
    assert found[0] == TASK[0] and shown(found)[1] == "answer 2 a" and shown(found)[-1] == "feedback 7"
    assert [m["role"] for m in found] == ["user", "assistant"] * (len(found) // 2) + ["user"]
    assert "(Turns 0 to 1 are left out here.)" in found[2]["content"]
    assert "(Turns 3 to 5 are left out here.)" in found[4]["content"]


def test_answers_too_long_are_cut_down_to_their_code():
    found = messages(TASK, turns(5, 5000), 1, 400)
    assert [m["content"] for m in found if m["role"] == "assistant"] == ["```python\ncode 1\n```", "```python\ncode 4\n```"]


def test_a_last_answer_whose_code_alone_is_too_long_is_left_out_and_its_feedback_stays():
    long = [Turn("x" * 3000, "x" * 3000, "feedback 0")]
    found = messages(TASK, long, None, 300)
    assert "too long" in found[1]["content"] and found[2]["content"] == "feedback 0"


def test_an_empty_answer_has_words_because_providers_refuse_empty_messages():
    assert messages(TASK, [Turn("", None, "feedback")], None, 1000)[1]["content"] == "(no answer)"
