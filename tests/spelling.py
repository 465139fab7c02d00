"""Three small tokenizers of the kinds that models have, trained on a made-up corpus, and a brute force for prefixes."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import takewhile

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from loadgen.exchange import Request

SPECIAL = ["<unk>", "<s>", "</s>"]
KINDS = ("bytes", "pieces", "words")


@cache
def corpus() -> list[str]:
    """Two thousand sentences of words that nobody knows; some have letters beyond ASCII."""
    rng = random.Random(5)
    syllables = "ba ro ni te kul mas pre ö ßa lé wing 語 tr ou".split()
    lexicon = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(300)]
    return [" ".join(rng.choices(lexicon, k=rng.randint(3, 20))) + rng.choice([".", "!", " ?"]) for _ in range(2000)]


@cache
def trained(kind: str) -> str:
    """tokenizer.json's text: `bytes` is GPT-2's, Llama 3's and Qwen's kind, `pieces` Llama 2's, `words` a WordLevel."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=800,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(corpus(), trainer)
    elif kind == "pieces":
        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
        tokenizer.train_from_iterator(corpus(), trainer)
    else:
        tokenizer = Tokenizer(models.WordLevel(unk_token=SPECIAL[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words = trainers.WordLevelTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
        tokenizer.train_from_iterator(corpus(), words)
    return tokenizer.to_str()


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements are equal, counted one by one."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def ids_of(request: Request) -> list[int]:
    assert not isinstance(request.prompt, str | tuple)
    return list(request.prompt)
