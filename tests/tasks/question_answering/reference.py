"""Implements windows and span decoding with loops over every window, token and span.

It is slow and simple; tests compare the graph functions with it.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.text.offsets import byte_to_char_offsets


@dataclass
class Window:
    """A window: its token ids, and the part of the context that it contains."""

    question: int
    ids: list[int]
    context_at: int
    offset: int  # context tokens before the window
    length: int  # context tokens in the window


def windows_of(questions, tokenizer, settings):
    """Returns the windows, and the tokens of each context.

    A token is (start character, end, whether it starts a word, whether it ends a word).
    """
    windows, tokens = [], []
    contexts = [question.context.encode() for question in questions]
    queries = tokenizer.tokenize([question.text for question in questions]).to_list()
    all_ids, starts, ends = tokenizer.tokenize_with_offsets(contexts)
    starts, ends = (byte_to_char_offsets(contexts, each).to_list() for each in (starts, ends))
    for i, (query, ids) in enumerate(zip(queries, all_ids.to_list(), strict=True)):
        query = query[: settings.max_query_length]
        begins = [not tokenizer.vocab[token].startswith("##") for token in ids]
        tokens.append([*zip(starts[i], ends[i], begins, [*begins, True][1:], strict=True)])
        room = settings.max_seq_length - 3 - len(query)
        offset = 0
        while True:
            part = ids[offset : offset + room]
            row = [tokenizer.cls_token_id, *query, tokenizer.sep_token_id]
            row += [*part, tokenizer.sep_token_id]
            windows.append(Window(i, row, len(query) + 2, offset, len(part)))
            if offset + room >= len(ids):
                break
            offset += min(room, settings.doc_stride)
    return windows, tokens


def owners_of(windows):
    """Returns {(question, context token): the window with the most context around it}."""
    scores = defaultdict(list)
    for number, window in enumerate(windows):
        for place in range(window.length):
            around = min(place, window.length - 1 - place) + 0.01 * window.length
            scores[window.question, window.offset + place].append((around, -number))
    return {token: -max(shown)[1] for token, shown in scores.items()}


def candidates_of(questions, tokenizer, settings, start, end):
    """Tries every span.

    Args:
        start: flat start logits of all windows.
        end: flat end logits.

    Returns:
        For each question its candidates (text, first character, end, start logit, end logit), best
        first, and the (start, end) logits of no answer.
    """
    windows, tokens = windows_of(questions, tokenizer, settings)
    owners = owners_of(windows)
    spans, nulls = ([[] for _ in questions] for _ in range(2))
    flat = 0
    for number, window in enumerate(windows):
        i = window.question
        nulls[i].append((float(start[flat]), float(end[flat])))
        for first in range(window.length):
            left, _, begins, _ = tokens[i][window.offset + first]
            if owners[i, window.offset + first] != number or not begins:
                continue
            for last in range(first, min(first + settings.max_answer_length, window.length)):
                _, right, _, finishes = tokens[i][window.offset + last]
                if not finishes:
                    continue
                logits = [
                    float(values[flat + window.context_at + place])
                    for values, place in ((start, first), (end, last))
                ]
                spans[i].append((questions[i].context[left:right], left, right, *logits))
        flat += len(window.ids)
    found = []
    for i in range(len(questions)):
        best = {}
        for span in sorted(spans[i], key=lambda span: -(span[3] + span[4])):
            best.setdefault(span[0], span)
        found.append(([*best.values()][: settings.n_best_size], min(nulls[i], key=sum)))
    return found


def check_answers(outputs, questions, found, settings):
    """Compares decoded answers with the reference: texts and positions exactly, scores closely."""
    for i, (question, (candidates, null)) in enumerate(zip(questions, found, strict=True)):
        null_score = sum(null)
        score = sum(candidates[0][3:]) if candidates else null_score
        np.testing.assert_allclose(outputs["score"][i], score, rtol=1e-6)
        np.testing.assert_allclose(outputs["null_score"][i], null_score, rtol=1e-6)
        is_null = settings.threshold is not None and null_score - score > settings.threshold
        best = ("", -1, -1) if is_null or not candidates else candidates[0][:3]
        got = outputs["answer"][i].decode(), outputs["start"][i], outputs["end"][i]
        assert got == best, question
        if settings.version_2_with_negative or not candidates:
            candidates = sorted(
                [*candidates, ("", -1, -1, *null)], key=lambda each: -(each[3] + each[4])
            )
        count, width = len(candidates), outputs["nbest_starts"].shape[1]
        scores = np.array([each[3] + each[4] for each in candidates])
        exponentials = np.exp(scores - scores.max())
        columns = {
            "answers": [each[0].encode() for each in candidates],
            "starts": [each[1] for each in candidates],
            "ends": [each[2] for each in candidates],
        }
        for name, values in columns.items():
            padding = b"" if name == "answers" else -1
            expected = values + [padding] * (width - count)
            assert outputs[f"nbest_{name}"][i].tolist() == expected, question
        numbers = {
            "probabilities": exponentials / exponentials.sum(),
            "start_logits": [each[3] for each in candidates],
            "end_logits": [each[4] for each in candidates],
        }
        for name, values in numbers.items():
            expected = np.pad(values, [0, width - count])
            np.testing.assert_allclose(outputs[f"nbest_{name}"][i], expected, rtol=1e-6)


class FixedNetwork:
    """A network whose logits depend only on a token, its segment, position and window length."""

    config = BertConfig(vocab_size=100)

    def __init__(self):
        self.values = np.random.default_rng(3).normal(size=[2, 99_991]).astype(np.float32)

    def __call__(self, input_ids, segment_ids):
        lengths = input_ids.row_lengths()
        places = tf.ragged.range(lengths).values
        length = tf.gather(lengths, input_ids.value_rowids())
        number = 7919 * tf.cast(input_ids.values, tf.int64) + 104_729 * places + 31 * length
        number += 13 * tf.cast(segment_ids.values, tf.int64)
        return {
            f"{end}_logits": tf.gather(values, number % values.size)
            for end, values in zip(("start", "end"), self.values, strict=True)
        }
