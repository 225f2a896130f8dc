"""A model's own chat template (Jinja) -> an encoder for whole rendered prompts.

Must not know caches. Templates come from model repositories, so they run in a sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from irminsul.errors import InvalidParams, InvalidTrace, MissingExtra
from irminsul.tokenizer import Encoder

__all__ = ["JinjaEncoder"]


class JinjaEncoder:
    """Render chat requests by a template, and encode them.

    Parameters
    ----------
    encoder : Encoder
        From `irminsul.tokenizer.load_tokenizer`.
    template : Path
        A Jinja file, or a ``tokenizer_config.json`` that holds ``chat_template``.

    Raises
    ------
    InvalidParams
        The file cannot be read or is not a template.
    MissingExtra
        The package ``jinja2`` is missing.
    """

    def __init__(self, encoder: Encoder, template: Path) -> None:
        self._encoder = encoder
        self.template_path = template
        source, self._tokens = _source(template)
        self._template = _compile(source, template)

    @property
    def path(self) -> Path:
        """Return the tokenizer file."""
        return self._encoder.path

    def encode_pieces(self, pieces: Iterable[str], /) -> npt.NDArray[np.uint32]:
        """Return the ids of the concatenated pieces, uint32 [n]."""
        return self._encoder.encode_pieces(pieces)

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Return the prompt as one piece.

        Raises
        ------
        InvalidTrace
            The template refuses these messages.
        """
        try:
            text = self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=True, **self._tokens
            )
        except Exception as error:  # Templates raise whatever they like.
            raise InvalidTrace(f"{self.template_path}: {error}") from error
        return [str(text)]


def _source(path: Path) -> tuple[str, dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return text, {"bos_token": "", "eos_token": ""}
        config = json.loads(text)
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return str(config["chat_template"]), {name: _token(config.get(name)) for name in names}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidParams(f"cannot read a chat template from {str(path)!r}: {error!r}") from error


def _token(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _compile(source: str, path: Path) -> Any:
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtra("chat templates need: pip install 'irminsul-kv[cli]'") from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise InvalidParams(f"{str(path)!r} is not a chat template: {error}") from error
