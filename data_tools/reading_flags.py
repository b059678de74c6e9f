"""Defines the flags of all programs that read a corpus."""

from data_tools.corpus import INPUT_FORMATS, Reading
from keras_bert.programs.flags import Definitions


def define_flags(define: Definitions) -> None:
    """Defines --input_format, --text_field, --language and --max_bad_line_share."""
    default = Reading()
    define.enum(
        "input_format",
        default.input_format,
        INPUT_FORMATS,
        "sentences: one per line, a blank line between documents. prose: running text, a blank "
        "line between paragraphs, two or more (or a form feed) between documents. jsonl: one JSON "
        "object per line. wiki: output of WikiExtractor, as tags or JSON. gutenberg: books of "
        "Project Gutenberg. parquet, arrow: one document per row; arrow also reads the folders of "
        "Hugging Face's Dataset.save_to_disk. html, markdown, docx: one document per file. mixed: "
        "by the ending of each file's name; .txt is prose.",
    )
    define.string(
        "text_field",
        default.text_field,
        "Field or column that holds the document, for jsonl, parquet, arrow and mixed.",
    )
    define.string(
        "language",
        default.language,
        "Language code (such as en or zh) of the rules that split text into sentences.",
    )
    define.number(
        "max_bad_line_share",
        default.max_bad_line_share,
        "Fraction of the lines or rows of a file that may be undecodable or malformed; 0 rejects "
        "the first one.",
    )
