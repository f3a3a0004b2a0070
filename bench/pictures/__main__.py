"""Draw the pictures of the documentation into docs/pictures."""

from bench.pictures import benchmarks, diagrams, terminal
from bench.pictures.drawing import FOLDER

FOLDER.mkdir(exist_ok=True)
for name, picture in {**terminal.pictures(), **diagrams.pictures(), **benchmarks.pictures()}.items():
    (FOLDER / name).write_text(picture)
    print(FOLDER / name)
