"""SQuAD, question answering by spans: questions and contexts in; slices of the contexts out."""
