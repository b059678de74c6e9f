"""WNUT-17 as a column file and as texts with spans trains to the same weights."""

import pytest

from keras_bert.tasks.ner.conll import Sentence, read_conll, write_conll
from keras_bert.tasks.ner.span_records import AnnotatedText
from keras_bert.tasks.ner.span_sentences import tagged_sentences
from keras_bert.text.tokenizer import BertTokenizer
from keras_bert.text.vocabulary import SPECIAL_TOKENS, load_vocab
from tests.tasks.ner.test_fine_tuning import run
from tests.tasks.ner.test_span_sentences import spans_of_conll


def sentences_with_equal_words(
    sentences: list[Sentence], tokenizer: BertTokenizer
) -> list[Sentence]:
    """Returns the sentences whose text, with single spaces, is split into the same words."""
    texts = [AnnotatedText("", index, " ".join(s.words), []) for index, s in enumerate(sentences)]
    split, _ = tagged_sentences(texts, tokenizer)
    words = {sentence.line: sentence.words for sentence in split}
    return [s for index, s in enumerate(sentences) if words.get(index) == s.words]


@pytest.mark.slow
def test_wnut_17_as_columns_and_as_spans_trains_to_the_same_bits(
    shared_data, make_checkpoint, tmp_path
):
    vocab = load_vocab(shared_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    tokens = [token for token in vocab if token not in SPECIAL_TOKENS]
    bert = make_checkpoint(tmp_path / "bert", tokens, max_position_embeddings=64)
    sentences = read_conll(shared_data / "ner" / "wnut17" / "wnut17train.conll")
    kept = sentences_with_equal_words(
        sentences, BertTokenizer(load_vocab(bert / "vocab.txt"), do_lower_case=True)
    )
    print(
        f"WNUT-17: {len(sentences) - len(kept)} of {len(sentences)} sentences are excluded, "
        "because their text is split into other words"
    )
    assert len(kept) > 900
    assert {tag for sentence in kept for tag in sentence.tags} == {
        tag for sentence in sentences for tag in sentence.tags
    }
    write_conll(tmp_path / "train.conll", [(s.words, s.tags) for s in kept])
    (tmp_path / "train.jsonl").write_text(spans_of_conll(tmp_path / "train.conll"))
    weights = {}
    for name in ("train.conll", "train.jsonl"):
        run(
            tmp_path,
            tmp_path / f"out-{name}",
            train_file=str(tmp_path / name),
            eval_file="",
            test_file="",
            max_seq_length=64,
            num_train_epochs=24 / len(kept),  # 3 steps of 8 sentences.
        )
        weights[name] = (tmp_path / f"out-{name}" / "model" / "model.safetensors").read_bytes()
    assert weights["train.conll"] == weights["train.jsonl"]
