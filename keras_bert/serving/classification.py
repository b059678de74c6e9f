"""A served classifier: texts in; labels, probabilities and logits out, or a regression's score.

    text [B] (and text_pair [B]) -> word pieces -> [CLS] a [SEP] b [SEP] -> logits [B, C]

What is too long loses its end, as in training. B texts, C classes.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_bert.serving import token_ids
from keras_bert.serving.inputs import same_shape
from keras_bert.serving.network import Network
from keras_bert.text.padding import join
from keras_bert.text.tokenizer import BertTokenizer


class ServedClassifier(tf.Module):
    """A classifier or a regression as signatures of a SavedModel.

    Args:
        network: of a BertClassifier.
        tokenizer: the model's.
        labels: names of the C classes; none for a regression.
        problem_type: transformers' word for the loss: single_label_classification,
            multi_label_classification or regression.
        max_seq_length: pieces of a text or pair at most, with [CLS] and [SEP].
        pair: whether two texts belong together.
    """

    def __init__(
        self,
        network: Network,
        tokenizer: BertTokenizer,
        labels: Sequence[str],
        problem_type: str,
        max_seq_length: int,
        pair: bool,
    ):
        super().__init__(name="classifier")
        self.network = network
        self.tokenizer = tokenizer
        self.labels = tf.constant(list(labels), tf.string)
        self.problem_type = problem_type
        self.max_seq_length = max_seq_length
        self.pair = pair

    def signatures(self) -> dict[str, Callable]:
        """Returns the signatures: of texts, and of token ids."""
        names = ("text", "text_pair") if self.pair else ("text",)
        texts = [tf.TensorSpec([None], tf.string, name=name) for name in names]
        return {
            "serving_default": tf.function(self.of_texts, input_signature=texts),
            "token_ids": tf.function(self.of_token_ids, input_signature=token_ids.SPECS),
        }

    def of_texts(self, *texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Classifies texts: strings [B], once or twice."""
        if len(texts) == 1:
            sides = [self.tokenizer.tokenize(texts[0])]
        else:  # Both in one call: a batch of one spends more time on starting ops than in them.
            texts = same_shape(text=texts[0], text_pair=texts[1])
            pieces = self.tokenizer.tokenize(tf.concat(texts, axis=0))
            count = tf.size(texts[0])
            sides = [pieces[:count], pieces[count:]]
        rows = join(
            *sides,
            max_seq_length=self.max_seq_length,
            cls_token_id=self.tokenizer.cls_token_id,
            sep_token_id=self.tokenizer.sep_token_id,
        )
        return self._outputs(*rows)

    def of_token_ids(
        self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Classifies token ids: int32 [B, S] each."""
        limit = self.network.config.max_position_embeddings
        rows = token_ids.Rows(input_ids, input_mask, segment_ids, limit)
        return self._outputs(rows.input_ids, rows.segment_ids)

    def _outputs(
        self, input_ids: tf.RaggedTensor, segment_ids: tf.RaggedTensor
    ) -> dict[str, tf.Tensor]:
        logits = self.network(input_ids, segment_ids)["logits"]
        if self.problem_type == "regression":
            return {"score": logits[:, 0]}
        if self.problem_type == "multi_label_classification":
            order = tf.argsort(logits, direction="DESCENDING", stable=True)
            on = tf.gather(logits, order, batch_dims=1) > 0  # probability above a half
            return {
                "labels": tf.where(on, tf.gather(self.labels, order), ""),
                "probabilities": tf.sigmoid(logits),
                "logits": logits,
            }
        return {
            "label": tf.gather(self.labels, tf.argmax(logits, axis=-1)),
            "probabilities": tf.nn.softmax(logits),
            "logits": logits,
        }
