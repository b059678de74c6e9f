"""Flags for reading a corpus, shared by the programs that read one."""

from data_tools.corpus.documents import INPUT_FORMATS, Reading
from keras_bert.programs.flags import Definitions


def define_flags(define: Definitions) -> None:
    """Defines --input_format, --text_field, --language and --max_bad_line_share."""
    default = Reading()
    define.enum(
        "input_format",
        default.input_format,
        INPUT_FORMATS,
        "sentences: one a line, a blank line between documents. prose: running text, a blank line "
        "between paragraphs, two or more (or a form feed) between documents. jsonl: a JSON object "
        "a line. wiki: WikiExtractor's output, either form. gutenberg: Project Gutenberg's books.",
    )
    define.string("text_field", default.text_field, "Field of jsonl that holds the document.")
    define.string(
        "language",
        default.language,
        "Language whose rules split text into sentences, a code such as en or zh.",
    )
    define.number(
        "max_bad_line_share",
        default.max_bad_line_share,
        "Share of a file's lines that may be undecodable or malformed; 0 rejects the first one.",
    )
