"""Text and text-pair classification and regression: files in; scores and predictions out."""
