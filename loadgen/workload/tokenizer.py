"""A model's tokenizer, read from disk, and prompts turned by it into the form an API takes."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.exchange import Request

if TYPE_CHECKING:
    import tokenizers


class TokenizerError(Exception):
    """No tokenizer could be read: says from where, and what to give instead."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Texts to token ids and back. Nothing special is added; a server may add its own, such as a first token."""

    _model: "tokenizers.Tokenizer"
    path: Path = Path("tokenizer.json")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """From a tokenizer.json, or a folder that has one. Only the disk is looked at. TokenizerError otherwise."""
        import tokenizers  # noqa: PLC0415 - 10 ms, for those only who need one

        path = Path(path)
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise TokenizerError(f"{file}: there is no such file; {_WANTED}") from None
        except OSError as error:
            raise TokenizerError(f"{file}: cannot be read: {error.strerror}; {_WANTED}") from None
        except UnicodeDecodeError:
            raise TokenizerError(f"{file}: is no text; {_WANTED}") from None
        try:
            model = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # noqa: BLE001 - it raises nothing narrower
            raise TokenizerError(f"{file}: describes no tokenizer: {error}; {_WANTED}") from None
        model.no_truncation()  # either may be stored in the file, and would change what a text counts
        model.no_padding()
        return cls(model, file)

    def encode(self, text: str) -> list[int]:
        """The ids of a text; half a surrogate pair, which JSON allows, counts as a question mark."""
        with self._faults():
            return self._model.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it raises nothing narrower
            raise TokenizerError(f"{self.path}: this tokenizer cannot write every text: {error}") from None

    def decode(self, ids: Sequence[int]) -> str:
        return self._model.decode(list(ids), skip_special_tokens=False)

    @property
    def vocab_size(self) -> int:
        """All ids, those of added tokens included."""
        return self._model.get_vocab_size(with_added_tokens=True)

    @cached_property
    def ordinary_ids(self) -> "array[int]":
        """Ids of the model's own vocabulary in order: no special ones, no added ones. For prompts sent as ids."""
        added = self._model.get_added_tokens_decoder()
        return array("i", sorted(id_ for id_ in self._model.get_vocab().values() if id_ not in added))

    @cached_property
    def words(self) -> "array[int]":
        """The ordinary ids that stay themselves in a text, since they begin with the space that keeps them apart. For
        prompts sent as text: of other ids, many are pieces of a character or grow together with their neighbours, and
        the text's tokens are then neither those drawn nor as many.

        Empty for tokenizers that know no words, such as those of single characters.
        """
        once = self._model.decode_batch([[id_] for id_ in self.ordinary_ids], skip_special_tokens=False)
        twice = self._model.decode_batch([[id_] * 2 for id_ in self.ordinary_ids], skip_special_tokens=False)
        with self._faults():
            again = self._model.encode_batch_fast(twice, add_special_tokens=False)
        return array(
            "i",
            (
                id_
                for id_, one, two, tokens in zip(self.ordinary_ids, once, twice, again, strict=True)
                if two[len(one) :].startswith(" ") and one.strip() and tokens.ids == [id_, id_]
            ),
        )

    def text_of(self, ids: Sequence[int]) -> tuple[str, int]:
        """A text of exactly len(ids) tokens, as near to `ids` as can be, and how many tokens it really has.

        Of `words` it is their text. Of other ids the text often has more or fewer tokens; then it is cut and filled up
        with words at its end, a little further from it each time, and the closest is taken where none is exact.
        """
        text = self.decode(ids)
        kept = self.encode(text)
        closest = text, len(kept)
        for slack in range(TRIES):
            if closest[1] == len(ids):
                break
            start = self.decode(kept[: max(0, len(ids) - slack)])
            missing = len(ids) - len(self.encode(start))
            text = start + self._filling(missing)
            tokens = len(self.encode(text))
            closest = min(closest, (text, tokens), key=lambda found: abs(found[1] - len(ids)))
        return closest

    def _filling(self, n: int) -> str:
        """`n` words, with the space before them."""
        if n <= 0 or not len(self.ordinary_ids):
            return ""
        word = (self.words or self.ordinary_ids)[-1]
        return self.decode([word] * (n + 1))[len(self.decode([word])) :]


TRIES = 16
_WANTED = "give a tokenizer.json or the folder that has it, as a model's own folder does"


def as_text(request: Request, tokenizer: Tokenizer) -> Request:
    """The same request with a prompt of ids said as text, as long as it was, and with a text's length counted. A
    conversation stays as it is."""
    if isinstance(request.prompt, tuple):
        return request
    if isinstance(request.prompt, str):
        return replace(request, text_len=len(tokenizer.encode(request.prompt)))
    text, tokens = tokenizer.text_of(request.prompt)
    return replace(request, prompt=text, text_len=tokens)


def as_ids(request: Request, tokenizer: Tokenizer) -> Request:
    """The same request with a text as token ids. A conversation, which only a server's template makes tokens of, stays
    as it is."""
    if not isinstance(request.prompt, str):
        return request
    return replace(request, prompt=array("i", tokenizer.encode(request.prompt)), text_len=None)
