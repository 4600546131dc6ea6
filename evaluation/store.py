r"""What has been measured, one line of JSON each, so that an interrupted run goes on where it stopped."""

import json
import os
import os.path as osp
from typing import NamedTuple


class Job(NamedTuple):
    part: str
    graph: str
    model: str
    seed: int
    explainer: str


class Store:
    r"""The records in a folder, by job. Several runs may add to it at the same time."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.path = osp.join(folder, 'records.jsonl')
        self.records = {}
        if osp.exists(self.path):
            with open(self.path) as file:
                lines = file.read().split('\n')
            for line in filter(None, lines):
                try:
                    record = json.loads(line)
                except ValueError:  # it was cut short
                    continue
                self.records[Job(*(record.pop(name) for name in Job._fields))] = record
            if lines[-1]:
                self._write('\n')

    def add(self, job, record):
        self.records[job] = record
        self._write(json.dumps({**job._asdict(), **record}) + '\n')

    def select(self, part, **fields):
        r"""The records of a part, by job, whose other fields are as given."""
        wanted = {'part': part, **fields}
        return {j: r for j, r in self.records.items() if all(getattr(j, name) == v for name, v in wanted.items())}

    def _write(self, text):
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, text.encode())  # at once, so that the lines of two runs don't mix
        os.close(file)
