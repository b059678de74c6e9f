"""The layers of BERT, with keras.ops alone, so that they run on every backend of Keras."""
