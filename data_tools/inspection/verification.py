"""Compares record files with their manifest."""

import os
from collections.abc import Callable, Iterator

from keras_bert.common import files
from keras_bert.data.record_files import MANIFEST, RecordFiles


def verify(found: RecordFiles, progress: Callable[[int], None] = lambda _: None) -> Iterator[str]:
    """Yields a message for each record file or vocabulary that differs from its manifest.

    `found` are the record files of one folder. `progress` is called with the size of each verified
    file in bytes.
    """
    shards = found.shards()
    if found.manifest:
        shards[found.manifest["vocab"]["file"]] = found.manifest["vocab"]
    checked = [*found.names, *([found.manifest["vocab"]["file"]] if found.manifest else [])]
    for name in checked:
        path = os.path.join(found.folder, name)
        try:
            size = os.path.getsize(path)
            if found.manifest is None:
                continue
            if name not in shards:
                yield f"{path}: not listed in {MANIFEST}; expected only listed record files"
            elif size != (expected := shards[name].get("bytes", size)):
                yield f"{path}: found {size} bytes; expected {expected}"
            elif (digest := files.sha256(path)) != (expected := shards[name]["sha256"]):
                yield f"{path}: found sha256 {digest}; expected {expected}"
        except OSError as error:
            yield f"{path}: cannot be read ({error.strerror})"
        else:
            progress(size)
