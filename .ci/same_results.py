"""Compares the results of two checkouts: records, weights, predictions, exports and conversions.

A script of the redesign (issue 40), which goes when it ends:

    git worktree add ../base COMMIT
    python .ci/same_results.py run ../base /tmp/base [CASE ...]
    python .ci/same_results.py run . /tmp/now [CASE ...]
    python .ci/same_results.py compare /tmp/base /tmp/now

Run it on one machine. A case is a line of `CASES`, or a function of `API`; a finished case is not
repeated. `{data}` is the folder of real data, `{in}` the inputs that `make_inputs` writes, and
`{out}` the folder of all results of a checkout, in which each case has one of its own name.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
PYTHON = ROOT / ".venv" / "bin" / "python"
VOCAB = "{data}/vocab/bert-base-uncased/vocab.txt"
RECORDS = "create_pretraining_data --max_seq_length=64 --vocab_file={vocab} --random_seed=7 "
TRAIN = (
    "run_pretraining --bert_config={in}/tiny.json --learning_rate=1e-3 --num_warmup_steps=5 "
    "--num_train_steps=30 --train_batch_size=16 --mixed_precision=float32 --log_steps=10 "
    "--save_checkpoints_steps=10 --eval_file={out}/records_prose "
)
TUNE = (
    "--init_checkpoint={in}/bert --num_train_steps=30 --train_batch_size=8 --learning_rate=1e-3 "
    "--mixed_precision=float32 --max_seq_length=64 "
)
SQUAD = "--train_file={in}/squad.json --eval_file={in}/squad_dev.json --doc_stride=16 "
EMBED = "--train_file={in}/pairs.tsv --eval_file={in}/pairs.tsv "
TASKS = {  # name: flags of its data
    "cola": "run_classifier --task_name=cola --data_dir={in}/CoLA ",
    "mrpc": "run_classifier --task_name=mrpc --data_dir={in}/MRPC ",
    "stsb": "run_classifier --task_name=sts-b --data_dir={in}/STS-B ",
    "wnut": "run_ner --data_dir={in}/ner ",
    "squad": "run_squad " + SQUAD,
    "embedding": "run_embedding " + EMBED,
}
CASES = {
    "records_sentences": RECORDS + "--input_file={in}/kjv.txt --dupe_factor=2 --num_workers=1",
    "records_prose": RECORDS + "--input_file={in}/prose.txt --input_format=prose --num_workers=2",
    "records_4_workers": RECORDS + "--input_file={in}/kjv.txt --dupe_factor=2 --num_workers=4",
    "records_whole_word": RECORDS + "--input_file={in}/kjv.txt --do_whole_word_mask",
    "records_span": RECORDS + "--input_file={in}/kjv.txt --ngram=3",
    "records_dynamic": RECORDS + "--input_file={in}/kjv.txt --dynamic",
    "records_full": RECORDS + "--input_file={in}/kjv.txt --next_sentence=none",
    "records_packed": RECORDS + "--input_file={in}/kjv.txt --next_sentence=none --pack",
    "pretrain": TRAIN + "--input_file={out}/records_prose --export",
    "pretrain_jit": TRAIN + "--input_file={out}/records_prose --jit_compile",
    "pretrain_accumulate": TRAIN
    + "--input_file={out}/records_prose --gradient_accumulation_steps=4 --optimizer=lamb",
    "pretrain_recompute": TRAIN + "--input_file={out}/records_prose --gradient_checkpointing",
    "pretrain_dynamic": TRAIN + "--input_file={out}/records_dynamic",
    "pretrain_packed": TRAIN + "--input_file={out}/records_packed --objective=mlm "
    "--eval_file={out}/records_packed",
    "pretrain_ltr": TRAIN + "--input_file={out}/records_full --objective=ltr "
    "--eval_file={out}/records_full",
    "pretrain_mirrored": TRAIN
    + "--input_file={out}/records_prose --distribution_strategy=mirrored --num_devices=2",
    "pretrain_killed": TRAIN + "--input_file={out}/records_prose",
    "pretrain_bfloat16": TRAIN + "--input_file={out}/records_prose --mixed_precision=bfloat16",
    "jax_pretrain": TRAIN + "--input_file={out}/records_prose",
    "pretrain_phases": "run_pretraining --recipe={in}/recipe.toml --mixed_precision=float32 "
    "--input_file={out}/records_prose --eval_file={out}/records_prose",
    **{name: data + TUNE + "--export" for name, data in TASKS.items()},
    "jax_mrpc": TASKS["mrpc"] + TUNE,
    "teacher_mrpc": TASKS["mrpc"] + TUNE + "--teacher={out}/mrpc/model",
    "features": "extract_features --input_file={in}/sentences.txt --init_checkpoint={in}/bert "
    "--max_seq_length=32 --output_file={out}/features/features.jsonl --mixed_precision=float32",
    "convert_tf1": "-m keras_bert convert {data}/checkpoints/keras_bert_test_checkpoint "
    "{out}/convert_tf1/model",
    "convert_run": "-m keras_bert convert {out}/pretrain {out}/convert_run/model",
}
API = """
import json, os, sys
import numpy as np
import keras, keras_bert
case, source, runs, out = sys.argv[1:]
lines = open(source + "/sentences.txt").read().splitlines()[:40]
questions, contexts, answers = json.load(open(source + "/squad_rows.json"))
words, tags = json.load(open(source + "/ner_rows.json"))
settings = dict(epochs=2, batch_size=8, learning_rate=1e-3, seed=3)

def fit_classifier():
    labels = [("no", "yes")[i % 2] for i in range(len(lines))]
    task = keras_bert.TextClassifier.from_pretrained(
        source + "/bert", labels=["no", "yes"], max_seq_length=64)
    task.fit(lines, labels, validation_data=(lines[:8], labels[:8]), **settings)
    return task, (lines,)

def fit_regressor():
    task = keras_bert.TextClassifier.from_pretrained(source + "/bert", max_seq_length=64)
    task.fit((lines, lines[::-1]), [i / 10 for i in range(len(lines))], **settings)
    return task, ((lines, lines[::-1]),)

def fit_answerer():
    task = keras_bert.QuestionAnswerer.from_pretrained(source + "/bert", max_seq_length=64)
    task.fit(questions, contexts, answers, **settings)
    return task, (questions, contexts)

def fit_tagger():
    task = keras_bert.EntityTagger.from_pretrained(
        source + "/bert", labels=sorted({t for row in tags for t in row}), max_seq_length=64)
    task.fit(words, tags, **settings)
    return task, ([" ".join(row) for row in words],)

def fit_embedder():
    task = keras_bert.TextEmbedder.from_pretrained(source + "/bert", max_seq_length=64)
    task.fit((lines, lines[::-1]), **settings)
    return task, (lines,)

def fit_mask_filler():
    task = keras_bert.MaskFiller.from_pretrained(source + "/bert", max_seq_length=64)
    task.fit(lines, **settings)
    return task, ([line + " [MASK]" for line in lines],)

def written(outputs):
    result = {}
    for name, value in outputs.items():
        value = np.asarray(value, object if isinstance(value, list) else None)
        result[name] = value.tolist() if value.dtype == object else np.asarray(value).tolist()
    return result

task, inputs = globals()[case]()
task.save_pretrained(out + "/model")
predictions = {"predict": written(task.predict(*inputs))}
task.export(out + "/export/1")
predictions["exported"] = written(keras_bert.load(out + "/export/1").predict(*inputs))
predictions["saved"] = written(keras_bert.load(out + "/model").predict(*inputs))

def plain(value):
    if isinstance(value, np.ndarray): return plain(value.tolist())
    if isinstance(value, (list, tuple)): return [plain(v) for v in value]
    if isinstance(value, dict): return {k: plain(v) for k, v in value.items()}
    if isinstance(value, bytes): return value.decode()
    if isinstance(value, np.generic): return value.item()
    return value

json.dump(plain(predictions), open(out + "/predictions.json", "w"), indent=1)
"""
API_CASES = [line[4:-3] for line in API.splitlines() if line.startswith("def fit_")]
# Names of files whose content differs from run to run: times, rates, paths and versions.
SKIPPED = ("metrics.jsonl", "run.json", "README.md", "export.json", "saved_model.pb", ".index")
SKIPPED += ("keras_metadata.pb", "fingerprint.pb", "manifest.json", "dataset.json")
SKIPPED_FOLDERS = ("checkpoints", "tensorboard", "variables", "assets.extra", "best")


def make_inputs(folder: Path) -> None:
    """Writes small parts of the real data, a model with random weights, and a recipe."""
    folder.mkdir(parents=True)

    def head(source: str, target: str, num_lines: int) -> list[str]:
        lines = (DATA / source).read_bytes().split(b"\n")[:num_lines]
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / target).write_bytes(b"\n".join(lines) + b"\n")
        return [line.decode("utf-8-sig").strip() for line in lines]

    kjv = sorted((DATA / "corpus" / "kjv").glob("*.txt"))[:4]
    (folder / "kjv.txt").write_bytes(b"\n\n".join(path.read_bytes() for path in kjv)[:400_000])
    prose = head("corpus/pride_and_prejudice.txt", "prose.txt", 4000)
    sentences = [line for line in prose if len(line) > 30][:200]
    (folder / "sentences.txt").write_text("\n".join(sentences) + "\n")
    for task in ("CoLA", "MRPC", "STS-B"):
        for split in ("train", "dev"):
            head(f"glue/{task}/{split}.tsv", f"{task}/{split}.tsv", 200)
    head("ner/wnut17/wnut17train.conll", "ner/train.conll", 3000)
    head("ner/wnut17/emerging.dev.conll", "ner/dev.conll", 1000)
    pairs = zip(sentences[:-1:2], sentences[1::2], strict=True)
    rows = ["anchor\tpositive", *("\t".join(s.replace("\t", " ") for s in p) for p in pairs)]
    (folder / "pairs.tsv").write_text("\n".join(rows) + "\n")
    squad = json.loads((DATA / "squad" / "xquad.en.json").read_text())
    for name, part in (("squad", squad["data"][:3]), ("squad_dev", squad["data"][3:5])):
        (folder / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": part}))
    columns = [], [], []
    for paragraph in squad["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            answer = question["answers"][0]
            row = (
                question["question"],
                paragraph["context"],
                {"text": answer["text"], "start": answer["answer_start"]},
            )
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    (folder / "squad_rows.json").write_text(json.dumps([c[:24] for c in columns]))
    words, tags = [[]], [[]]
    for line in (folder / "ner" / "train.conll").read_text().splitlines()[:600]:
        if line.strip():
            word, tag = line.split("\t")
            words[-1].append(word), tags[-1].append(tag.strip())
        elif words[-1]:
            words.append([]), tags.append([])
    (folder / "ner_rows.json").write_text(json.dumps([words[:24], tags[:24]]))
    config = {
        "vocab_size": 30522,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 128,
        "type_vocab_size": 2,
    }
    (folder / "tiny.json").write_text(json.dumps(config))
    make_model(folder / "bert", config)
    phase = "[[phase]]\nnum_train_steps = 15\ntrain_batch_size = 16\n"
    flags = f'[flags]\nbert_config = "{folder}/tiny.json"\nlearning_rate = 1e-3\n'
    phases = phase + "data = {max_seq_length = 64}\n"
    (folder / "recipe.toml").write_text(flags + "num_warmup_steps = 5\n" + phases * 2)


def make_model(folder: Path, config: dict) -> None:
    """Writes a Hugging Face directory of a pre-training model with random weights."""
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    size, inner = config["hidden_size"], config["intermediate_size"]
    weights = {}

    def linear(name: str, num_inputs: int, num_outputs: int) -> None:
        weights[f"{name}.weight"] = rng.normal(0, 0.1, (num_outputs, num_inputs))
        weights[f"{name}.bias"] = rng.normal(0, 0.02, num_outputs)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = rng.normal(1, 0.1, size)
        weights[f"{name}.bias"] = rng.normal(0, 0.1, size)

    tables = {"word": "vocab_size", "position": "max_position_embeddings"}
    for kind, rows in {**tables, "token_type": "type_vocab_size"}.items():
        name = f"bert.embeddings.{kind}_embeddings.weight"
        weights[name] = rng.normal(0, 0.1, (config[rows], size))
    norm("bert.embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{i}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", size, size)
        linear(f"{layer}.attention.output.dense", size, size)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", size, inner)
        linear(f"{layer}.output.dense", inner, size)
        norm(f"{layer}.output.LayerNorm")
    linear("bert.pooler.dense", size, size)
    linear("cls.predictions.transform.dense", size, size)
    norm("cls.predictions.transform.LayerNorm")
    weights["cls.predictions.bias"] = rng.normal(0, 0.1, config["vocab_size"])
    linear("cls.seq_relationship", size, 2)
    folder.mkdir()
    arrays = {name: value.astype(np.float32) for name, value in weights.items()}
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    settings = {"model_type": "bert", "architectures": ["BertForPreTraining"], **config}
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_act": "gelu"}))
    vocab = DATA / "vocab" / "bert-base-uncased" / "vocab.txt"
    (folder / "vocab.txt").write_bytes(vocab.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))


def run(tree: Path, out: Path, names: list[str]) -> None:
    """Runs cases with a checkout; prints the seconds, and the end of the log of one that fails."""
    inputs = Path("/tmp/same_results_inputs")
    if not inputs.exists():
        make_inputs(inputs)
    for name in names or [*CASES, *API_CASES]:
        folder = out / name
        if (folder / "finished").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["KERAS_BACKEND"] = "jax" if name.startswith("jax_") else "tensorflow"
        if name in API_CASES:
            command = ["-c", API, name, str(inputs), str(out), str(folder)]
        else:
            values = {"data": DATA, "in": inputs, "out": out, "vocab": VOCAB.format(data=DATA)}
            program, *flags = [part.format(**values) for part in CASES[name].split()]
            module = {"create_pretraining_data": "-m keras_bert create-pretraining-data"}
            command = module.get(program, program if program == "-m" else f"{program}.py").split()
            command += flags
            if not name.startswith(("features", "convert")):
                command += [f"--output_dir={folder}"]
        start = time.monotonic()
        with open(folder / "log", "ab") as log:
            streams = {"stdout": log, "stderr": log}
            process = subprocess.Popen(
                [str(PYTHON), *command], cwd=tree, env=environment, **streams
            )
            if name == "pretrain_killed":
                while process.poll() is None and not list(folder.glob("checkpoints/*-1?.index")):
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = subprocess.Popen(
                    [str(PYTHON), *command], cwd=tree, env=environment, **streams
                )
            code = process.wait()
        print(f"{name}: {time.monotonic() - start:.0f} s, exit code {code}", flush=True)
        if code:
            print((folder / "log").read_text()[-2000:])
        else:
            (folder / "finished").touch()


def compare(first: Path, second: Path) -> None:
    """Prints for each case whether all files are equal, or the largest difference of numbers."""
    for name in [*CASES, *API_CASES]:
        if not all((folder / name / "finished").exists() for folder in (first, second)):
            print(f"{name:24} not run")
            continue
        files = [files_of(folder / name) for folder in (first, second)]
        print(f"{name:24} {summary(*files)}")


def files_of(folder: Path) -> dict[str, Path]:
    """Returns {relative path: path} of the files of a case that are compared."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if (
            path.is_file()
            and not set(SKIPPED_FOLDERS) & set(parts)
            and not path.name.endswith(SKIPPED)
            and parts[-1] not in ("log", "finished")
        ):
            found["/".join(parts)] = path
    return found


def summary(first: dict[str, Path], second: dict[str, Path]) -> str:
    """Describes the differences between the files of a case."""
    parts = [f"only in one: {name}" for name in sorted(first.keys() ^ second.keys())]
    num_equal = 0
    for name in sorted(first.keys() & second.keys()):
        contents = [files[name].read_bytes() for files in (first, second)]
        if contents[0] == contents[1]:
            num_equal += 1
        else:
            parts.append(f"{name}: {difference(first[name], second[name])}")
    return "; ".join([f"{num_equal} files equal", *parts])


def difference(first: Path, second: Path) -> str:
    """Describes the difference between two files."""
    if first.suffix == ".safetensors":
        from safetensors.numpy import load_file

        weights = load_file(first), load_file(second)
        if weights[0].keys() != weights[1].keys():
            return f"other names {sorted(weights[0].keys() ^ weights[1].keys())[:4]}"
        largest = max(float(abs(weights[0][k] - v).max()) for k, v in weights[1].items())
        return f"weights differ by {largest:.2g}"
    if first.suffix in (".json", ".jsonl", ".tsv", ".txt"):
        try:
            values = [list(leaves(parsed(path))) for path in (first, second)]
        except ValueError:
            return "other text"
        if len(values[0]) != len(values[1]):
            return f"{len(values[0])} values, {len(values[1])} values"
        largest, num_other = 0.0, 0
        for one, two in zip(*values, strict=True):
            if isinstance(one, float | int) and isinstance(two, float | int):
                largest = max(largest, abs(one - two) / max(1, abs(one)))
            else:
                num_other += one != two
        return f"numbers differ by {largest:.2g}, {num_other} of {len(values[0])} other values"
    digests = [hashlib.sha256(path.read_bytes()).hexdigest()[:8] for path in (first, second)]
    return f"sha256 {digests[0]} and {digests[1]}"


def parsed(path: Path) -> object:
    """Returns the content of a JSON or text file as nested lists."""
    text = path.read_text()
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [line.split("\t") for line in text.splitlines()]


def leaves(value: object):
    """Yields the numbers and strings of nested lists and dictionaries."""
    if isinstance(value, dict):
        for key in value:
            yield key
            yield from leaves(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        try:
            yield float(value)
        except (TypeError, ValueError):
            yield value


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "run":
        tree, out = (Path(argument).resolve() for argument in arguments[:2])
        run(tree, out, arguments[2:])
    else:
        compare(*map(Path, arguments))
