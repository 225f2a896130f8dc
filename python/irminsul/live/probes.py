"""A seed -> prompts that repeat a document behind another header, as text or as token ids.

Must not know servers. No two passages share a run of words, so a server that reports reuse where
none is due has made a mistake.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from irminsul.live.client import Prompt

__all__ = ["Author", "Probe"]

_FRAME_WORDS = 60


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_SUBJECTS = _words(
    "captain clerk doctor engineer farmer gardener judge librarian merchant neighbour painter "
    "pilot printer sailor teacher watchman baker carpenter courier editor fisher miller nurse "
    "singer soldier student tailor trader visitor writer"
)
_VERBS = _words(
    "answered bought carried counted described divided examined found followed gathered heard "
    "kept measured mended moved opened painted promised read remembered returned saw sold sorted "
    "studied tested took watched weighed wrote"
)
_ADJECTIVES = _words(
    "ancient blue broken careful common distant early empty famous gentle heavy hidden hollow "
    "large local narrow northern patient plain quiet rare round rough second short silver slow "
    "small strange wooden"
)
_OBJECTS = _words(
    "anchor basket bell boat book bridge candle carpet clock coat contract garden gate hammer "
    "harbour kettle ladder lamp letter map mirror orchard parcel picture river road room table "
    "tower window"
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Two prompts that share a document, at different positions.

    Attributes
    ----------
    donor
        Header, document, ending.
    moved
        Another header of another length, the same document, another ending.
    frame
        The parts of `moved` that are not the document, to learn how long they are.
    """

    donor: Prompt
    moved: Prompt
    frame: Prompt


class Author:
    """Writes passages that were never written before.

    Parameters
    ----------
    seed
        The same seed writes the same passages.
    vocabulary
        Write token ids below this number instead of English text; None writes text.
    """

    def __init__(self, seed: int, vocabulary: int | None = None) -> None:
        self._random = random.Random(seed)
        self._vocabulary = vocabulary

    def probe(self, words: int) -> Probe:
        """Return a pair of prompts round a document of `words` words (or token ids)."""
        document = self._passage(words)
        donor = self._joined(self._passage(_FRAME_WORDS), document, self._passage(12))
        header, ending = self._passage(_FRAME_WORDS + self._random.randint(17, 51)), self._ending()
        return Probe(donor, self._joined(header, document, ending), self._joined(header, ending))

    def _passage(self, words: int) -> Sequence[int] | str:
        if self._vocabulary is not None:
            # The lowest ids are special in most vocabularies.
            low = min(100, self._vocabulary // 4)
            return [self._random.randrange(low, self._vocabulary) for _ in range(words)]
        sentences, count = [], 0
        while count < words:
            sentence = self._sentence()
            sentences.append(sentence)
            count += len(sentence.split())
        return " ".join(sentences)

    def _sentence(self) -> str:
        draw = self._random.choice
        return (
            f"The {draw(_ADJECTIVES)} {draw(_SUBJECTS)} {draw(_VERBS)} the {draw(_ADJECTIVES)} "
            f"{draw(_OBJECTS)} near the {draw(_OBJECTS)} at {self._random.randint(100, 9999)}."
        )

    def _ending(self) -> Sequence[int] | str:
        if self._vocabulary is not None:
            return self._passage(12)
        return f"Question {self._random.randint(10, 999)}: who is named in the text above? Answer:"

    def _joined(self, *parts: Sequence[int] | str) -> Prompt:
        if self._vocabulary is None:
            return "\n\n".join(part for part in parts if isinstance(part, str))
        return [token for part in parts for token in part if isinstance(token, int)]
