"""Compares SQuAD scores and speed of keras_bert with those of transformers' run_qa recipe.

    .venv/bin/python benchmarks/squad.py [--seeds=0,1,2] [--steps=376] [--contenders=...]

Both contenders start from MiniLM and train on the answerable questions of squad2_cs224n_dev.json
for `--steps` steps of 16 windows with up to 384 tokens, with doc stride 128 and run_qa's defaults:
a learning rate that falls from 5e-5 to 0, no warm-up and no weight decay. They then answer the
questions in xquad.en.json; the scores are those of the official SQuAD v1.1 scorer. keras_bert uses
its own data pipeline, training step and decoding; run_qa.py contains the other contender.

The speed and its ratio are medians over turns of `--turn` steps. The total time includes
compilation. Each finished seed is a line in `--results_file` and is not run again.
"""

import json
import sys
import time
from pathlib import Path
from statistics import mean, median, stdev

from absl import app, flags
from run_qa import BATCH, DEV, LENGTH, RATE, STRIDE, TRAIN, Predict, Train, make_torch
from workers import MODEL, ROOT, answer, start_worker

CONTENDERS = ("ours_bfloat16", "ours_float32", "torch_float32", "torch_bfloat16")
BASELINE = "torch_float32"

flags.DEFINE_list("seeds", ["0", "1", "2"], "seeds, one run of each contender per seed")
flags.DEFINE_integer("steps", 376, "training steps", lower_bound=1)
flags.DEFINE_integer("turn", 8, "steps per turn of a contender", lower_bound=1)
flags.DEFINE_list(
    "contenders", ["ours_bfloat16", BASELINE], f"contenders, from {', '.join(CONTENDERS)}"
)
flags.DEFINE_string(
    "results_file", "/tmp/squad_benchmark.jsonl", "file with one line per finished run"
)
flags.DEFINE_integer(
    "questions", 1190, "number of questions, the first of xquad.en.json", lower_bound=1
)
flags.DEFINE_string("worker", None, "internal: contender,seed,steps,questions")
FLAGS = flags.FLAGS


def make_ours(dtype: str, seed: int, steps: int, questions_asked: int) -> tuple[Train, Predict]:
    """Creates keras_bert's training and prediction functions; arguments as in run_qa.make_torch."""
    sys.path.insert(0, str(ROOT))
    import keras
    import tensorflow as tf

    from keras_bert.checkpoints.open_checkpoint import open_checkpoint
    from keras_bert.models import BertSpanLabeler
    from keras_bert.tasks.fine_tuning.batches import BatchSettings, training_batches
    from keras_bert.tasks.question_answering.data import AnswerSettings, load_questions
    from keras_bert.tasks.question_answering.metrics import span_objective
    from keras_bert.tasks.question_answering.processor import prepare_questions, training_examples
    from keras_bert.tasks.question_answering.task import QuestionAnswerer
    from keras_bert.text.tokenizer import BertTokenizer
    from keras_bert.training.objective import TrainingSettings, TrainState
    from keras_bert.training.optimizers import AdamWeightDecay
    from keras_bert.training.schedules import LinearWarmupDecay
    from keras_bert.training.step import make_train_steps

    keras.utils.set_random_seed(seed)
    start = open_checkpoint(MODEL)
    model = BertSpanLabeler(start.config, dtype={"bfloat16": "mixed_bfloat16"}.get(dtype, dtype))
    start.load_into(model)
    model.encoder.pooler.trainable = False
    optimizer = AdamWeightDecay(
        LinearWarmupDecay(RATE, steps, 0), weight_decay=0.0, epsilon=1e-8, bias_correction=True
    )
    optimizer.build(model.trainable_variables)
    strategy, task = tf.distribute.get_strategy(), span_objective()
    tokenizer = BertTokenizer(start.vocab, start.do_lower_case)
    questions = [question for question in load_questions(TRAIN) if question.answers]
    answerer = QuestionAnswerer(model, tokenizer, AnswerSettings(LENGTH, doc_stride=STRIDE))
    examples = training_examples(prepare_questions(answerer.processor, questions), questions)
    settings = TrainingSettings(steps, BATCH)
    train_steps = make_train_steps(strategy, TrainState(model, optimizer, task), settings)
    batch_settings = BatchSettings(BATCH, tokenizer.pad_token_id, LENGTH, seed, length_pool=4)
    batches = iter(training_batches(examples, batch_settings))

    def train(count: int) -> int:
        figures = train_steps(batches, tf.constant(count)).numpy()
        return int(figures.weights[:, 0].sum())  # The number of real windows.

    def predict() -> dict[str, str]:
        dev_questions = load_questions(DEV)[:questions_asked]
        texts, contexts = (
            [getattr(q, name) for q in dev_questions] for name in ("text", "context")
        )
        found = answerer.predict(texts, contexts)["answer"]
        return {q.id: text for q, text in zip(dev_questions, found, strict=True)}

    return train, predict


def work(contender: str, *numbers: int) -> None:
    """Answers each line on stdin, a number of training steps or "predict", with a line of JSON.

    `numbers` are seed, steps and questions_asked of run_qa.make_torch.
    """
    library, dtype = contender.split("_")
    train, predict = (make_ours if library == "ours" else make_torch)(dtype, *numbers)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        if line.strip() == "predict":
            reply = {"predictions": predict()}
        else:
            reply = {"windows": train(int(line))}
        print(json.dumps(reply | {"wall": time.perf_counter() - begin}), flush=True)


def race(contenders: list[str], seed: int, steps: int) -> dict[str, dict]:
    """Trains the contenders in turn; returns {contender: scores in percent, rates and seconds}."""
    sys.path.insert(0, str(ROOT))
    from keras_bert.tasks.question_answering.data import load_questions
    from keras_bert.tasks.question_answering.metrics import score_v1

    workers = {}
    for name in contenders:
        environment = ".venv" if name.startswith("ours") else ".peers"
        workers[name] = start_worker(
            environment, __file__, f"{name},{seed},{steps},{FLAGS.questions}"
        )
        answer(workers[name])

    def ask(name: str, message: object) -> dict:
        workers[name].stdin.write(f"{message}\n")
        workers[name].stdin.flush()
        return answer(workers[name])

    turns: dict[str, list[dict]] = {name: [] for name in contenders}
    for done in range(0, steps, FLAGS.turn):
        for name in contenders:
            turns[name].append(ask(name, min(FLAGS.turn, steps - done)))
        print(f"seed {seed}: {min(done + FLAGS.turn, steps)}/{steps} steps", file=sys.stderr)
    figures = {}
    for name in contenders:
        rates = [turn["windows"] / turn["wall"] for turn in turns[name]]
        reply = ask(name, "predict")
        figures[name] = {
            **score_v1(load_questions(DEV)[: FLAGS.questions], reply["predictions"]),
            "rates": rates,
            "train_seconds": sum(turn["wall"] for turn in turns[name]),
            "predict_seconds": reply["wall"],
        }
        workers[name].stdin.close()
        workers[name].wait()
    return figures


def report(runs: list[dict]) -> None:
    """Prints the table of means over `runs`, which are lines of the results file."""
    print(
        f"\nSQuAD, {runs[0]['steps']} steps of {BATCH}, {runs[0]['questions']} questions; "
        f"mean and spread over {len(runs)} seeds"
    )
    print(f"{'':16} exact         F1            windows/s  x {BASELINE}  train s  predict s")
    for name in runs[0]["figures"]:
        mine = [run["figures"][name] for run in runs]
        line = f"{name:16}"
        for figure in ("exact", "f1"):
            values = [each[figure] for each in mine]
            line += f" {mean(values):5.2f} ± {stdev(values) if values[1:] else 0:4.2f} "
        line += f" {median(rate for each in mine for rate in each['rates']):9.2f}"
        pairs = [
            ours / theirs
            for run in runs
            if BASELINE in run["figures"]
            for ours, theirs in zip(
                run["figures"][name]["rates"], run["figures"][BASELINE]["rates"], strict=True
            )
        ]
        line += f"  {median(pairs) if pairs else float('nan'):15.2f}"
        for figure in ("train_seconds", "predict_seconds"):
            line += f"  {mean(each[figure] for each in mine):9.0f}"
        print(line)


def main(_) -> None:
    """Runs the seeds that are missing from the results file, and prints the table."""
    if FLAGS.worker:
        contender, *numbers = FLAGS.worker.split(",")
        return work(contender, *map(int, numbers))
    unknown = set(FLAGS.contenders) - set(CONTENDERS)
    if unknown:
        sys.exit(
            f"--contenders: {sorted(unknown)} unknown; expected some of {', '.join(CONTENDERS)}"
        )
    results = Path(FLAGS.results_file)
    lines = results.read_text().splitlines() if results.exists() else []
    key = {name: FLAGS[name].value for name in ("steps", "turn", "questions", "contenders")}
    done = {
        run["seed"]: run
        for run in map(json.loads, lines)
        if all(run[name] == value for name, value in key.items())
    }
    for seed in map(int, FLAGS.seeds):
        if seed not in done:
            figures = race(FLAGS.contenders, seed, FLAGS.steps)
            done[seed] = {"seed": seed, **key, "figures": figures}
            with results.open("a") as file:
                file.write(json.dumps(done[seed]) + "\n")
    return report([done[int(seed)] for seed in FLAGS.seeds])


if __name__ == "__main__":
    app.run(main)
