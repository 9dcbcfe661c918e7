"""Reinforcement learning with the real TRL on the CPU: rollouts are a phase, and what stays after them is named when it rises."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import await_true

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed: make test-torch"),
]

GRPO = """
    import os, sys, time
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets, pyarrow, stepmem
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(30))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    sizes = dict(vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, eos_token_id=1, bos_token_id=1))
    model.generate = stepmem.phase("rollout")(model.generate)
    kept = []

    def reward(completions, **_):
        kept.append(b"x" * (48 << 20) if sys.argv[1] == "leaks" else b"")
        return [float(len(each)) for each in completions]

    prompts = pyarrow.table({"prompt": ["w1 w2 w3"] * 64})
    rows = datasets.Dataset(datasets.table.InMemoryTable(prompts), fingerprint="prompts")
    options = dict(max_steps=12, per_device_train_batch_size=2, num_generations=2, max_completion_length=4)
    options.update(report_to=[], logging_strategy="no", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True)
    trainer = GRPOTrainer(model, reward, args=GRPOConfig(output_dir="out", **options), train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert stepmem.flush(60)
    while not os.path.exists("over"):
        time.sleep(0.05)
"""


def test_rollouts_of_trl_are_phases_and_what_they_keep_is_named(exporter, train, tmp_path):
    trainings = [train(GRPO, exporter.url, run, through=("-m", "stepmem"), STEPMEM_RUN=run) for run in ("leaks", "healthy")]

    def at_the_end():
        assert all(training.process.poll() is None for training in trainings), [training.ended().err for training in trainings]
        status = exporter.status()
        steps = {(each["run"], each.get("step"), each.get("steps_total")) for each in status["ranks"]}
        return status if steps == {("leaks", 12, 12), ("healthy", 12, 12)} else None

    status = await_true("12 steps of both", at_the_end)
    of_phases = [each for each in status["findings"] if each["kind"] == "PHASE_RISING"]
    assert [(each["run"], each["evidence"]["phase"]) for each in of_phases] == [("leaks", "rollout")], status["findings"]
    (tmp_path / "over").touch()
    assert [training.ended().code for training in trainings] == [0, 0]
