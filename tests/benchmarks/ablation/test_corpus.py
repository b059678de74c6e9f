"""The data of benchmarks/ablation.py."""

import json


def test_articles_of_squad_are_for_training_or_for_evaluation(ablation, tmp_path):
    def question(name, impossible):
        answers = [] if impossible else [{"text": "a", "answer_start": 0}]
        return {"id": name, "question": "?", "is_impossible": impossible, "answers": answers}

    articles = [
        {
            "title": f"title {index}",
            "paragraphs": [
                {
                    "context": f"a context {index}",
                    "qas": [question(f"{index} yes", False), question(f"{index} no", True)],
                },
                {"context": "none", "qas": [question(f"{index} none", True)]},
            ],
        }
        for index in range(8)
    ]
    folder = tmp_path / "data" / "squad"
    folder.mkdir(parents=True)
    (folder / "squad2_cs224n_dev.json").write_text(json.dumps({"data": articles[::-1]}))
    folders = ablation.corpus.Folders(tmp_path / "data", tmp_path / "work")
    folders.prepared.mkdir(parents=True)
    found = {
        split: [
            (paragraph["context"], [qa["id"] for qa in paragraph["qas"]])
            for article in json.loads(path.read_text())["data"]
            for paragraph in article["paragraphs"]
        ]
        for split, path in ablation.corpus.split_squad(folders).items()
    }
    expected = {"train": (1, 2, 3, 5, 6, 7), "eval": (0, 4)}
    assert found == {
        split: [(f"a context {index}", [f"{index} yes"]) for index in indices]
        for split, indices in expected.items()
    }
