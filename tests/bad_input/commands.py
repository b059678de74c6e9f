"""Valid inputs and a valid command line for each program, which the cases then damage.

Paths are relative to the folder of a case. Not covered are the programs that run until they are
stopped (serve), that start other programs (demo), that do the work of several covered
programs (adapt) and that have no input (python-corpus).
"""

import json
from pathlib import Path

import docx
import pyarrow as pa
from pyarrow import parquet

WORDS = ["good", "bad", "film", "book", "it", "is", "a", "the", "##s", "very", "who", "king", "."]
VOCAB = ["[PAD]", *(f"[unused{n}]" for n in range(4)), "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SIZES = {
    "vocab_size": len(VOCAB),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}

_LEARN = "data_tools.build_vocab --vocab_file=out.txt"
_STEP = "--train_batch_size=2 --eval_batch_size=2 --nojit_compile --output_dir=out"
_TUNE = f"--init_checkpoint=bert --num_train_steps=1 --max_seq_length=24 {_STEP}"
_CLASSIFY = f"keras_bert.programs.classify --task_name=custom {_TUNE}"
_NER = f"keras_bert.programs.ner {_TUNE}"
_CONVERT = "keras_bert.programs.convert"
# {name of the command: module of the program, and its arguments}
_COMMANDS = {
    "build-vocab": f"{_LEARN} --input_file=corpus.txt --vocab_size=40",
    "build-vocab extend": f"{_LEARN} --input_file=corpus.txt --extend_vocab=vocab.txt",
    "build-vocab parquet": f"{_LEARN} --input_file=train.parquet --input_format=parquet "
    "--vocab_size=40",
    "build-vocab mixed": f"{_LEARN} --input_file=documents --input_format=mixed --vocab_size=40",
    "create-pretraining-data": "data_tools.create_pretraining_data --input_file=corpus.txt "
    "--vocab_file=vocab.txt --output_dir=out --max_seq_length=24 --max_predictions_per_seq=4 "
    "--dupe_factor=1 --num_shards=1 --num_workers=1 --user_tokens=king.txt",
    "inspect-tfrecords": "data_tools.inspect_tfrecords --input_file=dataset",
    "pretrain": "keras_bert.programs.pretrain --input_file=dataset --bert_config=config.json "
    f"--num_train_steps=1 --num_warmup_steps=1 --max_eval_steps=1 {_STEP}",
    "classify csv": f"{_CLASSIFY} --train_file=train.csv --eval_file=train.csv",
    "classify tsv": f"{_CLASSIFY} --train_file=train.tsv --predict_file=train.tsv",
    "classify jsonl": f"{_CLASSIFY} --train_file=train.jsonl --eval_file=train.jsonl",
    "classify parquet": f"{_CLASSIFY} --train_file=train.parquet --eval_file=train.parquet",
    "embed": "keras_bert.programs.embed --train_file=train.csv --eval_file=train.csv "
    f"--columns=anchor=text,positive=label {_TUNE}",
    "embed mine": "keras_bert.programs.embed --train_file=beir --mine_negatives=1 "
    f"--margin=-1 {_TUNE}",
    "squad": "keras_bert.programs.squad --train_file=squad.json --eval_file=squad.json "
    f"--max_query_length=8 {_TUNE}",
    "ner": f"{_NER} --train_file=train.conll --eval_file=train.conll",
    "ner spans": f"{_NER} --train_file=spans.jsonl --eval_file=spans.jsonl",
    "ner parquet": f"{_NER} --train_file=spans.parquet --eval_file=spans.parquet",
    "fill-mask": "keras_bert.programs.fill_mask --model_dir=run/model --top_k=2 it|is|[MASK]|.",
    "extract-features": "keras_bert.programs.extract_features --input_file=lines.txt "
    "--output_file=out.jsonl --init_checkpoint=bert --max_seq_length=24 --nojit_compile",
    "export": "keras_bert.programs.export --model_dir=run --export_dir=out/1",
    "convert": f"{_CONVERT} bert out",
    "convert tf1": f"{_CONVERT} tf1 out",
    "convert keras_hub": f"{_CONVERT} preset out",
    "convert add": f"{_CONVERT} bert out --add_tokens=words.txt",
    "convert own": f"{_CONVERT} bert out --user_tokens=own.txt",
    "convert keep": f"{_CONVERT} bert out --keep_corpus=corpus.txt",
    "plot": "keras_bert.programs.plot run --output_file=out.png",
}
# {name of the command: (module, arguments)}; "|" stands for a space within an argument.
COMMANDS = {
    name: (module, tuple(argument.replace("|", " ") for argument in arguments))
    for name, (module, *arguments) in ((n, text.split()) for n, text in _COMMANDS.items())
}


def write_inputs(folder: Path) -> None:
    """Writes the files of text and of labelled text."""
    sentences = ["it is a good film .", "the king is bad .", "who is it", "a very good book ."]
    (folder / "corpus.txt").write_text("\n\n".join(["\n".join(sentences)] * 3) + "\n")
    (folder / "lines.txt").write_text("\n".join([*sentences, "good film ||| bad book"]) + "\n")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (folder / "words.txt").write_text("goods\n##ss\n")
    (folder / "own.txt").write_text("[URL]\n<ent>\n")
    (folder / "king.txt").write_text("king\n")  # A token of the vocabulary.
    (folder / "config.json").write_text(json.dumps(SIZES))
    rows = [(text, ("no", "yes")[index % 2]) for index, text in enumerate(sentences)]
    for suffix, separator in (("csv", ","), ("tsv", "\t")):
        lines = [separator.join(row) for row in [("text", "label"), *rows]]
        (folder / f"train.{suffix}").write_text("\n".join(lines) + "\n")
    (folder / "train.jsonl").write_text(
        "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    )
    tagged = "who O\nis O\nthe B-PER\nking I-PER\n\na O\ngood B-MISC\nfilm O\n\n"
    (folder / "train.conll").write_text(tagged)
    answer = {"text": "king", "answer_start": 4}
    questions = [{"id": "1", "question": "who is it", "answers": [answer]}]
    paragraphs = [{"context": "the king is bad .", "qas": questions}]
    data = {"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}]}
    (folder / "squad.json").write_text(json.dumps(data))
    table = pa.Table.from_pylist([{"text": text, "label": label} for text, label in rows])
    parquet.write_table(table, folder / "train.parquet", row_group_size=2, write_page_checksum=True)
    _write_documents(folder / "documents", sentences)
    _write_spans(folder)
    _write_beir(folder / "beir", sentences)


def _write_documents(folder: Path, sentences: list[str]) -> None:
    """Writes an HTML file, a Markdown file and a Word document."""
    folder.mkdir()
    text = "\n".join(f"<p>{sentence}</p>" for sentence in sentences)
    (folder / "page.html").write_text(f"<html><body><h1>book</h1>{text}</body></html>")
    (folder / "notes.md").write_text("\n\n".join(["# film", *sentences, "* good\n* bad"]) + "\n")
    document = docx.Document()
    for sentence in sentences:
        document.add_paragraph(sentence)
    document.save(folder / "letter.docx")


def _write_spans(folder: Path) -> None:
    """Writes texts with spans as JSON lines and as Parquet."""
    annotated = [("who is the king", (7, 15, "PER")), ("a good film", (2, 6, "MISC"))]
    rows = [
        {"text": text, "entities": [dict(zip(("start", "end", "type"), span, strict=True))]}
        for text, span in annotated
    ]
    (folder / "spans.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), folder / "spans.parquet")


def _write_beir(folder: Path, sentences: list[str]) -> None:
    """Writes a BEIR directory whose queries are words of the documents."""
    (folder / "qrels").mkdir(parents=True)
    judgments = ["query-id\tcorpus-id\tscore"]
    with open(folder / "corpus.jsonl", "w") as corpus, open(folder / "queries.jsonl", "w") as file:
        for number, text in enumerate(sentences):
            corpus.write(json.dumps({"_id": f"d{number}", "title": "film", "text": text}) + "\n")
            file.write(json.dumps({"_id": f"q{number}", "text": text.split()[-2]}) + "\n")
            judgments.append(f"q{number}\td{number}\t1")
    (folder / "qrels" / "train.tsv").write_text("\n".join(judgments) + "\n")


def write_models(folder: Path) -> None:
    """Writes a checkpoint in each format."""
    import keras

    from keras_bert.checkpoints.hugging_face import save_model_directory
    from keras_bert.config import BertConfig
    from keras_bert.models.encoder import BertEncoder
    from tests.other_formats import write_keras_hub, write_tf1

    config = BertConfig.from_dict(SIZES)
    keras.utils.set_random_seed(0)
    model = BertEncoder(config)
    save_model_directory(folder / "bert", model, VOCAB)
    write_keras_hub(folder / "preset", model, VOCAB)
    write_tf1(folder / "tf1", model, VOCAB)
