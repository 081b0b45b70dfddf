"""Published traces as jobs."""

import json
from pathlib import Path

from bench.packing.job_traces import read_jobs


def test_helios(tmp_path: Path) -> None:
    file = tmp_path / "cluster_log.csv"
    file.write_text(
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "2,u,v,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0\n"
        "1,u,v,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0\n"
        "3,u,v,0,1,1,COMPLETED,2020-06-09 18:41:02,2020-06-09 18:41:02,2020-06-10 04:55:09,36848,0\n"
    )
    first, second = read_jobs(file)
    assert (first[0], first[2]) == (1, 36848)
    assert (second[0], second[2]) == (4, 249)
    assert second[1] - first[1] == 26


def test_philly(tmp_path: Path) -> None:
    def attempt(start: str | None, end: str | None, gpus: int) -> dict[str, object]:
        return {"start_time": start, "end_time": end, "detail": [{"ip": "m1", "gpus": ["gpu"] * gpus}]}

    whole = [
        attempt("2017-10-07 01:12:09", "2017-10-07 01:13:09", 2),
        attempt("2017-10-07 01:14:00", "2017-10-07 02:14:00", 8),
    ]
    jobs = [
        {"submitted_time": "2017-10-07 01:11:39", "attempts": whole},
        {"submitted_time": "2017-10-07 01:11:40", "attempts": []},
        {"submitted_time": "2017-10-07 01:11:41", "attempts": [attempt("2017-10-07 01:12:09", None, 8)]},
    ]
    file = tmp_path / "cluster_job_log"
    file.write_text(json.dumps(jobs))
    (job,) = read_jobs(file)
    assert (job[0], job[2]) == (8, 3660)


def test_other_csv(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("gpus,submitted,duration\n8,10,20.5\n")
    assert read_jobs(file) == [(8, 10.0, 20.5)]
