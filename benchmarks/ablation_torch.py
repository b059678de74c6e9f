"""Trains an arm of ablation.py with transformers + torch, and compares the held-out losses.

    .venv/bin/python benchmarks/ablation_torch.py [--size=tiny]

Both start from the same weights, and train on the same batches of the same records with the same
phases and schedule, and AdamW as in Google's BERT, without bias correction and dropout. Ours is the
run of `ablation.py --arms=SIZE-mlm_nsp`, in bfloat16; it is trained first if it does not exist yet.
torch trains in `.peers` in float32. It reads the batches from keras_bert's input pipeline, but
model, loss, gradients and updates are its own. At each checkpoint of ours, both are scored on all
records of the held-out books, in the length of the phase.

torch's figures are stored in --results_dir. After a kill, its run starts from the beginning.
"""

import copy
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from workers import ROOT

sys.path.insert(0, str(ROOT))
EVALUATION_BATCH = 32
DECAY, BETAS, EPSILON, MAX_NORM = 0.01, (0.9, 0.999), 1e-6, 1.0

flags.DEFINE_string("size", "tiny", "size of the arm: tiny, mini or small")
flags.DEFINE_float("scale", 1.0, "factor for the steps, for a trial", lower_bound=1e-6)
flags.DEFINE_string("data_dir", str(ROOT.parent / "shared/data"), "folder of the public data")
flags.DEFINE_string("work_dir", "/tmp/keras_bert_ablation", "folder of records and models")
flags.DEFINE_string(
    "results_dir", str(ROOT / "benchmarks/ablation_results"), "folder of the results"
)
flags.DEFINE_string("worker", None, "internal: file with the settings of torch's run")
FLAGS = flags.FLAGS


def batches(phase: Mapping, held_out: bool) -> Iterator[dict]:
    """Yields the batches of training, or those of an evaluation: {feature: torch tensor}."""
    import torch

    from keras_bert.data.pretraining_records import find_records
    from keras_bert.tasks.pretraining.batches import (
        RecordSource,
        evaluation_batches,
        training_batches,
    )

    folder = phase["held_out" if held_out else "records"]
    source = RecordSource(find_records(folder), phase["vocab_size"])
    if held_out:
        count = -(-source.data.num_examples // EVALUATION_BATCH)
        found = evaluation_batches(source, EVALUATION_BATCH, count)
    else:
        found = training_batches(source, phase["batch"], phase["seed"])
    for batch in found:
        yield {name: torch.from_numpy(np.array(value)) for name, value in batch.items()}


def losses(model: Any, batch: Mapping) -> tuple[Any, Any]:
    """Returns the sums of the losses of masked tokens and of next sentences, and their counts."""
    import torch
    from torch.nn.functional import cross_entropy

    hidden, pooled = model.bert(
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
        return_dict=False,
    )
    places = batch["masked_lm_positions"].long()[..., None].expand(-1, -1, hidden.shape[-1])
    tokens, sentences = model.cls(hidden.gather(1, places), pooled)
    token_weights, weights = batch["masked_lm_weights"], batch["example_weights"]
    by_token = cross_entropy(
        tokens.transpose(1, 2), batch["masked_lm_ids"].long(), reduction="none"
    )
    by_row = cross_entropy(sentences, batch["next_sentence_labels"].long(), reduction="none")
    sums = torch.stack([(token_weights * by_token).sum(), (weights * by_row).sum()])
    return sums, torch.stack([token_weights.sum(), weights.sum()])


def evaluate(model: Any, phase: Mapping) -> dict[str, float]:
    """Returns the held-out losses."""
    import torch

    with torch.no_grad():
        found = [losses(model, batch) for batch in batches(phase, held_out=True)]
    masked_lm, next_sentence = (sum(s for s, _ in found) / sum(c for _, c in found)).tolist()
    return {"masked_lm_loss": masked_lm, "next_sentence_loss": next_sentence}


class Adam:
    """AdamW as in Google's BERT, with its schedule: `w -= lr * (m / (sqrt(v) + eps) + decay * w)`.

    torch's own always corrects the bias of the moments.
    """

    def __init__(self, model: Any, settings: Mapping):
        import torch

        self._settings, self._taken = settings, 0
        self._state = [
            (value, torch.zeros_like(value), torch.zeros_like(value), _is_decayed(name))
            for name, value in model.named_parameters()
        ]

    def step(self) -> None:
        """Updates the weights with their gradients."""
        steps, warmup = self._settings["num_train_steps"], self._settings["num_warmup_steps"]
        rate = self._settings["learning_rate"] * (1 - self._taken / steps)
        if self._taken < warmup:
            rate = self._settings["learning_rate"] * self._taken / warmup
        for value, m, v, decays in self._state:
            gradient = value.grad
            m.mul_(BETAS[0]).add_(gradient, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            change = m / (v.sqrt() + EPSILON)
            value.data.sub_(rate * (change + DECAY * value.data if decays else change))
            value.grad = None
        self._taken += 1


def _is_decayed(name: str) -> bool:
    return not name.endswith("bias") and "LayerNorm" not in name


def train_torch(settings: Mapping) -> list[dict[str, float]]:
    """Trains with torch; returns the held-out losses at each tenth of the steps."""
    import torch
    import transformers

    model = transformers.BertForPreTraining.from_pretrained(settings["model"], dtype=torch.float32)
    model.eval()  # The study has no dropout.
    optimizer, curve, done = Adam(model, settings), [], 0
    for phase in settings["phases"]:
        stream = batches(phase, held_out=False)
        for step in range(1, phase["steps"] + 1):
            sums, counts = losses(model, next(stream))
            (sums[0] / (counts[0] + 1e-5) + sums[1] / counts[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            if step % settings["every"] == 0 or step == phase["steps"]:
                curve.append({"step": done + step, **evaluate(model, phase)})
                print(f"torch: {curve[-1]}", file=sys.stderr, flush=True)
        done += phase["steps"]
    return curve


def compare() -> None:
    """Does the missing runs, and prints the held-out losses side by side."""
    from ablation.corpus import HELD_OUT, Folders, prepare_records
    from ablation.plan import PLAN
    from ablation.pretraining import pretrain, run_folder
    from ablation.results import Results
    from ablation.units import Unit, pretraining_settings

    study = dataclasses.replace(PLAN, scale=FLAGS.scale)
    folders = Folders(Path(FLAGS.data_dir), Path(FLAGS.work_dir))
    arm, start = study.arm(f"{FLAGS.size}-mlm_nsp"), study.arm(f"{FLAGS.size}-none")
    results = Results(Path(FLAGS.results_dir), study)
    ours = results.get(Unit(arm))
    if ours is None:
        ours = pretrain(arm, study, folders)
        results.record(Unit(arm), ours)
    pretrain(start, study, folders)
    own = pretraining_settings(arm, study)
    records = prepare_records(arm.records, study, folders)
    held_out = prepare_records(HELD_OUT, study, folders)
    phases = study.phases_of(arm)
    steps = sum(phase.steps for phase in phases)
    flags = own["recipe"]["flags"]
    settings = {
        "num_train_steps": steps,
        "num_warmup_steps": max(1, round(flags["num_warmup_steps"] * study.scale_of(arm))),
        "learning_rate": flags["learning_rate"],
        "every": study.checkpoint_interval(arm),
        "phases": [
            {
                **dataclasses.asdict(phase),
                "vocab_size": study.vocab_size,
                "seed": own["random_seed"],
            }
            for phase in phases
        ],
    }
    # Paths do not change the result.
    recorded = copy.deepcopy(settings)
    settings["model"] = str(run_folder(start, folders) / "model")
    for phase in settings["phases"]:
        phase["records"] = records.format(max_seq_length=phase["length"])
        phase["held_out"] = held_out.format(max_seq_length=phase["length"])
    file = results.folder / f"torch-{arm.name}.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    if found.get("settings") != recorded:
        given = folders.work / f"torch-{arm.name}.json"
        given.write_text(json.dumps(settings))
        command = [ROOT / ".peers/bin/python", __file__, f"--worker={given}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = {"settings": recorded, "curve": json.loads(done.stdout)}
        file.write_text(f"{json.dumps(found, indent=1)}\n")
    report(ours.figures["curve"], found["curve"])


def report(ours: list[dict], theirs: list[dict]) -> None:
    """Prints the held-out losses of both at each tenth of the steps."""
    print("| step | masked LM: ours | torch | difference | next sentence: ours | torch |")
    print("| --- | --- | --- | --- | --- | --- |")
    by_step = {own["step"]: own for own in ours}
    for other in theirs:
        own = by_step[other["step"]]
        pair = [own["eval_masked_lm_loss"], other["masked_lm_loss"]]
        cells = [f"{other['step']}", *(f"{value:.4f}" for value in (*pair, pair[0] - pair[1]))]
        sentences = (own["eval_next_sentence_loss"], other["next_sentence_loss"])
        cells += [f"{value:.4f}" for value in sentences]
        print(f"| {' | '.join(cells)} |")


def main(_) -> None:
    """Runs the comparison, or torch's part of it."""
    if FLAGS.worker:
        print(json.dumps(train_torch(json.loads(Path(FLAGS.worker).read_text()))))
    else:
        compare()


if __name__ == "__main__":
    app.run(main)
