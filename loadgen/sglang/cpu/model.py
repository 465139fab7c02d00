"""Writes a tiny model with random weights, and a tokenizer for it, for SGLang to serve.

    python model.py FOLDER [llama|qwen3]

Runs in SGLang's environment. The weights are the same on every machine; their answers are nonsense, and as long as they
are asked to be. The folder appears when it is whole.
"""

import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

VOCABULARY = 10240  # sglang.benchmark.one_batch draws ids below 10,000
CONTEXT = 8192
SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main(folder: Path, kind: str) -> None:
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _tokenizer().save_pretrained(part)
    _save_model(part, kind)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _tokenizer() -> Any:
    """Byte-level BPE, trained on this Python's own standard library: text that is on every machine."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("*.py"))), trainer)
    special = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = TEMPLATE
    return fast


def _save_model(folder: Path, kind: str) -> None:
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    family = {"llama": "Llama", "qwen3": "Qwen3"}[kind]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        initializer_range=0.2,  # ten times the usual: greedy answers vary, and no two logits are nearly equal
        **ids,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32).eval()
    model.save_pretrained(folder)
    transformers.GenerationConfig(**ids).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "llama")
