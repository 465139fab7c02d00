"""The workloads' tables: what is sent. A `kind` picks the type; each table makes its own requests."""

from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from loadgen import traces, workload
from loadgen.scenario.arrivals import TraceFormat, Window, trace_of
from loadgen.scenario.fields import ConstantLength, Count, File, Length, Share, Table

VocabSize = Annotated[
    int, Field(gt=10, le=10_000_000, description="token ids are drawn from 10 to this; with a tokenizer, from its own")
]


class Vocabulary(TypedDict):
    """The ids below `vocab_size`, or these."""

    vocab_size: int
    ids: Sequence[int] | None


@cache
def _tokenizer(path: str) -> workload.Tokenizer:
    """Raises workload.TokenizerError."""
    tokenizer = workload.Tokenizer.load(path)
    if not tokenizer.ordinary_ids:
        raise workload.TokenizerError(f"{path}: this tokenizer has no tokens but special ones")
    return tokenizer


@cache
def _conversations(path: str) -> list[tuple[str, ...]]:
    """Raises traces.DataError."""
    return [one.turns for one in traces.read_sharegpt(Path(path))]


@cache
def _rows(path: str, most: int | None) -> list[traces.Row]:
    """Raises traces.DataError."""
    return list(islice(traces.read_jsonl(Path(path)), most))


class _Prompts(Table):
    num_prompts: Count | None = Field(None, description="requests to send; or say measure.duration, or both")
    tokenizer: File | None = Field(
        None, description="tokenizer.json or its folder: exact lengths where an API or a data set has text"
    )

    @property
    def finite(self) -> bool:
        """Whether it ends by itself."""
        return False

    @property
    def unique(self) -> bool:
        """Whether no prompt begins as another one does."""
        return False

    def size(self, rng: np.random.Generator) -> int | None:
        """How many requests it has of this generator, None where it does not end; raises traces.DataError."""
        return sum(1 for _ in self.prompts().requests(rng)) if self.finite else None

    def prompts(self) -> workload.Workload:
        """What makes its requests; raises traces.DataError."""
        raise NotImplementedError

    def stamps(self) -> tuple[NDArray[np.float64], float | None] | None:
        """The data set's own stamps in seconds and the width to which they were rounded, where it has any."""
        return None

    def tokens(self) -> workload.Tokenizer | None:
        """The tokenizer; raises workload.TokenizerError."""
        return _tokenizer(self.tokenizer) if self.tokenizer else None


class _Drawn(_Prompts):
    vocab_size: VocabSize = 4096

    def vocabulary(self) -> Vocabulary:
        """What prompts are written with; the same whether they go out as ids or as text."""
        tokenizer = self.tokens()
        return {
            "vocab_size": self.vocab_size,
            "ids": (tokenizer.words or tokenizer.ordinary_ids) if tokenizer else None,
        }


class RandomWorkload(_Drawn):
    """Prompts of random token ids; nothing is shared between them."""

    kind: Literal["random"] = "random"
    input_len: Length
    output_len: Length
    random_range_ratio: Share | None = Field(
        None, description="SGLang's sense: both lengths uniform from length x ratio to length"
    )
    vllm_range_ratio: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        None, description="vLLM's sense: both lengths uniform from length x (1 - ratio) to length x (1 + ratio)"
    )

    @field_validator("random_range_ratio", "vllm_range_ratio")
    @classmethod
    def lengths_are_plain(cls, ratio: float | None, info: ValidationInfo) -> float | None:
        lengths = [info.data.get("input_len"), info.data.get("output_len")]
        if ratio is not None and not all(isinstance(length, ConstantLength | None) for length in lengths):
            raise ValueError("needs input_len and output_len as plain numbers")
        if ratio is not None and info.data.get("random_range_ratio") is not None:
            raise ValueError("not beside random_range_ratio, which has another meaning")
        return ratio

    @property
    def unique(self) -> bool:
        return True

    def lengths(self) -> tuple[workload.Length, workload.Length]:
        """Of input and output."""

        def ranged(length: Length) -> workload.Length:
            if isinstance(length, ConstantLength) and self.random_range_ratio is not None:
                return workload.sglang_range(length.value, self.random_range_ratio)
            if isinstance(length, ConstantLength) and self.vllm_range_ratio is not None:
                return workload.vllm_range(length.value, self.vllm_range_ratio)
            return length.distribution()

        return ranged(self.input_len), ranged(self.output_len)

    def prompts(self) -> workload.Workload:
        return workload.RandomTokens(*self.lengths(), **self.vocabulary())


class PrefixWorkload(_Drawn):
    """Groups of prompts with one system prompt each, which a prefix cache can keep."""

    kind: Literal["prefix"]
    groups: Count = Field(description="how many system prompts there are")
    zipf: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="exponent of their popularity: the k-th is asked for in proportion to k^-zipf; 0: all alike"
    )
    system_len: Length
    question_len: Length
    output_len: Length

    def prompts(self) -> workload.Workload:
        return workload.SharedPrefix(
            self.groups,
            self.zipf,
            self.system_len.distribution(),
            self.question_len.distribution(),
            self.output_len.distribution(),
            **self.vocabulary(),
        )


class TraceWorkload(_Drawn, Window):
    """The lengths of a trace, and where it has block hashes, prompts that share as its prompts did."""

    kind: Literal["trace"]
    file: File
    format: TraceFormat | None = Field(None, description="of the file; default: seen from its first line")

    @property
    def finite(self) -> bool:
        return True

    def trace(self) -> traces.Trace:
        """Raises traces.DataError."""
        return trace_of(self.file, self.format, self.start, self.stop, self.num_prompts)

    @property
    def unique(self) -> bool:
        return self.trace().blocks is None

    def size(self, rng: np.random.Generator) -> int:  # noqa: ARG002 - the trace is what it is
        return len(self.trace().at)

    def stamps(self) -> tuple[NDArray[np.float64], float | None]:
        trace = self.trace()
        return trace.at, trace.bin

    def prompts(self) -> workload.Workload:
        trace = self.trace()
        if unknown := int(((trace.input_len == 0) | (trace.output_len == 0)).sum()):
            raise traces.DataError(
                [f"{self.file}: {unknown} of its requests have no known length: replay only its stamps (arrivals.file)"]
            )
        return workload.TracePrompts(
            trace.input_len.tolist(),
            trace.output_len.tolist(),
            blocks=trace.blocks,
            block_size=trace.block_size,
            **self.vocabulary(),
        )


class ShareGptWorkload(_Prompts):
    """First turns of the conversations of a ShareGPT file."""

    kind: Literal["sharegpt"]
    file: File
    output_len: Length | None = Field(
        None, validate_default=True, description="default: the length of the file's own answer (needs a tokenizer)"
    )
    shuffle: bool = Field(True, description="in a random order; otherwise in the file's")
    max_len: Count | None = Field(
        None, description="leave out what comes to more tokens, prompt and answer together (needs a tokenizer)"
    )
    repeat: bool = Field(False, description="begin again at the end of the file")

    @field_validator("output_len")
    @classmethod
    def lengths_are_known(cls, length: Length | None, info: ValidationInfo) -> Length | None:
        if length is None and info.data.get("tokenizer") is None:
            raise ValueError("needs a length, or workload.tokenizer to count the file's own answers")
        return length

    @field_validator("max_len")
    @classmethod
    def lengths_can_be_counted(cls, max_len: int | None, info: ValidationInfo) -> int | None:
        if max_len is not None and info.data.get("tokenizer") is None:
            raise ValueError("is in tokens: needs workload.tokenizer")
        return max_len

    @property
    def finite(self) -> bool:
        return not self.repeat

    def prompts(self) -> workload.Workload:
        return workload.ShareGpt(
            _conversations(self.file),
            self.output_len.distribution() if self.output_len else None,
            self.tokens(),
            shuffle=self.shuffle,
            max_len=self.max_len,
            repeat=self.repeat,
        )


class JsonlWorkload(_Prompts):
    """One request a line: `prompt`, `messages` or `input_ids`, and where they are given lengths and stamps."""

    kind: Literal["jsonl"]
    file: File
    output_len: Length | None = Field(None, description="for the lines that have none")
    repeat: bool = Field(False, description="begin again at the end of the file")

    @property
    def finite(self) -> bool:
        return not self.repeat

    def rows(self) -> list[traces.Row]:
        """Raises traces.DataError."""
        return _rows(self.file, None if self.repeat else self.num_prompts)

    def stamps(self) -> tuple[NDArray[np.float64], float | None] | None:
        stamps = [row.timestamp for row in self.rows()]
        if any(stamp is None for stamp in stamps):
            return None
        at = np.array(stamps, float)
        return at - at[0], None

    def prompts(self) -> workload.Workload:
        length = self.output_len.distribution() if self.output_len else None
        rows = self.rows()
        if length is None and (bare := next((row for row in rows if row.output_len is None), None)):
            raise traces.DataError([f"{self.file}:{bare.line}: no output_len: give workload.output_len for such lines"])
        return workload.Jsonl(rows, length, self.tokens(), repeat=self.repeat)


def _random_by_default(table: object) -> object:
    return {"kind": "random", **table} if isinstance(table, dict) else table


_Workloads = RandomWorkload | PrefixWorkload | ShareGptWorkload | JsonlWorkload | TraceWorkload
Workload = Annotated[
    Annotated[_Workloads, Field(discriminator="kind")],
    BeforeValidator(_random_by_default, json_schema_input_type=_Workloads),
]
