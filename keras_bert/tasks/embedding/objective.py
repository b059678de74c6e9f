"""Defines the objective of training text embeddings, for the programs."""

from typing import Any

import keras

from keras_bert.models.bert_network import select_inputs
from keras_bert.models.pooled_encoder import pool, project
from keras_bert.tasks.embedding.losses import EmbeddingLoss, RowLabels
from keras_bert.training.objective import Batch, Objective, RowObjective


def embedding_objective(loss: EmbeddingLoss, pooling: str) -> Objective:
    """Creates the objective for a `BertEncoder` and batches with "scores" and "text_ids" [R].

    `pooling` is `mean` or `cls`.
    """

    def vectors_of(model: keras.Model, batch: Batch, training: bool) -> Any:
        hidden = model(select_inputs(batch), training=training)["sequence_output"]
        return project(model, pool(hidden, batch["input_mask"], pooling))

    def sums_of_vectors(vectors: Any, batch: Batch) -> dict[str, Any]:
        labels = RowLabels(batch["scores"], batch["text_ids"], batch["example_weights"])
        return {"loss": loss.total(vectors, labels)}

    return Objective(
        metrics=("loss",),
        losses={"loss": 0.0},
        weights=lambda batch: {"loss": loss.weight(batch["example_weights"])},
        sums=lambda model, batch, training: sums_of_vectors(
            vectors_of(model, batch, training), batch
        ),
        rows=RowObjective(vectors_of, sums_of_vectors),
        rows_per_example=loss.columns,
    )
