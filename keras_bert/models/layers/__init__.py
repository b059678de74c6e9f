"""The layers of BERT, built only on keras.ops, so they run on every Keras backend."""
