"""Recorded answers: a litellm provider ``replay/...`` that reads files instead of calling anyone.

Two sources: ``conf/replay/<model>/`` for the demonstration models, and the Parquet of an earlier run (``models=[replay:RUN]``).
A demonstration answer is ``<NNN_stem>/<attempt>.md`` (``<attempt>-<turn>.md`` for later turns), both counted from 0 as in the
records, else ``<NNN_stem>/default.md``, else ``default.md``. Its optional front matter, between two lines of ``---``, sets
``finish_reason`` and ``usage``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pkb.config import conf_root
from pkb.errors import UserError
from pkb.generate.models import Model, Prices

PROVIDER = "replay"
COLUMNS = ["model", "problem", "attempt", "turn", "status", "answer", "reasoning", "finish_reason", "usage", "request_id"]


@dataclass(frozen=True)
class Recording:
    """One recorded answer, as a provider would give it."""

    answer: str
    reasoning: str = ""
    finish_reason: str = "stop"
    usage: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    request_id: str = ""


def find(model: Model, problem: str, attempt: int, turn: int) -> Recording | None:
    """The recorded answer to one question, or None."""
    if model.replay_run:
        return _run_answers(model.replay_run).get((model.name, problem, attempt, turn))
    folder = conf_root() / "replay" / model.model.removeprefix(f"{PROVIDER}/")
    names = [f"{attempt}-{turn}.md"] if turn else []
    tried = [folder / problem / n for n in (*names, f"{attempt}.md", "default.md")] + [folder / "default.md"]
    path = next((p for p in tried if p.is_file()), None)
    return None if path is None else _parse(path)


def models_of(run: Path) -> list[Model]:
    """The models whose answers a run directory holds, each to be answered from it; raises UserError if there are none."""
    if not (run / "generations").is_dir():
        raise UserError(f"replay:{run}: no run directory with generations/ there; give the path that `pkb sweep` printed")
    names = sorted({model for model, *_ in _run_answers(str(run))})
    if not names:
        raise UserError(f"replay:{run}: the run holds no generation yet")
    free = Prices(0.0, 0.0)
    return [Model(name, f"{PROVIDER}/{name}", prices=free, replay_run=str(run)) for name in names]


def handler() -> Any:
    """litellm's custom handler; imports litellm."""
    from litellm import CustomLLM
    from litellm.llms.custom_llm import CustomLLMError

    class Replay(CustomLLM):
        async def acompletion(self, *args: Any, **kwargs: Any) -> Any:
            asked = kwargs["optional_params"]["recording"]
            found = find(*asked)
            if found is None:
                raise CustomLLMError(404, f"no recorded answer of {asked[0].name} for {asked[1]}, attempt {asked[2]}")
            response = kwargs["model_response"]
            choice = response.choices[0]
            choice.finish_reason = found.finish_reason
            choice.message.content = None if found.refusal else found.answer
            choice.message.refusal = found.refusal
            if found.reasoning:
                choice.message.reasoning_content = found.reasoning
            response.usage = _usage(found)
            response.id = found.request_id or response.id
            return response

    return Replay()


def _usage(found: Recording) -> Any:
    from litellm import Usage

    output = int(found.usage.get("completion_tokens", max(1, len(found.answer) // 4)))
    prompt = int(found.usage.get("prompt_tokens", 0))
    return Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=prompt + output)


def _parse(path: Path) -> Recording:
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return Recording(text)
    import yaml

    head, separator, body = text[4:].partition("\n---\n")
    if not separator:
        raise UserError(f"{path.name}: front matter has no closing line of ---")
    data = yaml.safe_load(head) or {}
    return Recording(
        answer=body,
        finish_reason=str(data.get("finish_reason", "stop")),
        usage=data.get("usage", {}),
        reasoning=str(data.get("reasoning", "")),
        refusal=data.get("refusal"),
    )


@functools.cache
def _run_answers(run: str) -> dict[tuple[str, str, int, int], Recording]:
    """Every counted answer of a run by (model, problem, attempt, turn)."""
    return {
        (row["model"], row["problem"], row["attempt"], row["turn"]): Recording(
            answer=row["answer"],
            reasoning=row["reasoning"],
            finish_reason=row["finish_reason"] or "stop",
            usage=json.loads(row["usage"] or "{}"),
            refusal=row["answer"] if row["status"] == "refused" else None,
            request_id=row["request_id"],
        )
        for row in _rows(Path(run))
        if row["status"] != "provider_error"
    }


def _rows(run: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for part in sorted((run / "generations").glob("part-*.parquet")):
        yield from pq.read_table(part, columns=COLUMNS).to_pylist()
