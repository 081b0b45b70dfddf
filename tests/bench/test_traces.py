"""Trace files are read, or refused with the place of the error."""

import pytest

from bench.packing.traces import BadInput, read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,32000,131072,4,P100\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time
p0,4000,1024,1,460,,0,100
p1,4000,1024,2,1000,T4|P100,5,50
p2,8000,2048,0,0,,7,
"""


@pytest.fixture
def files(tmp_path):
    return trace_files(tmp_path)


def trace_files(directory):
    (directory / "nodes.csv").write_text(NODES)
    (directory / "pods.csv").write_text(PODS)
    return directory


def test_pods_and_nodes_are_read(files):
    nodes, pods = read_nodes(files / "nodes.csv"), read_pods(files / "pods.csv")
    assert [(node.name, len(node.gpus), node.model) for node in nodes] == [("a", 2, "T4"), ("b", 4, "P100")]
    assert pods[0].request.shares.compute_milli == 460
    assert pods[1].request.models == {"T4", "P100"}
    assert pods[1].request.shares.count == 2
    assert pods[2].request.shares is None
    assert (pods[2].created, pods[2].deleted) == (7.0, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column 'name' is missing"),
        ("name,cpu_milli\np,1\n", "column 'memory_mib' is missing"),
        (PODS + "p3,x,1,0,0,,,\n", "line 5: cpu_milli: 'x' is not a whole number"),
        (PODS + "p3,1\n", "line 5: has too few cells"),
        (PODS + "p3,1,1,1,1001,,,\n", "line 5: gpu_milli: 1001 is not between 0 and 1000"),
        (PODS + "p3,1,1,1,0,,,\n", "line 5: num_gpu is 1, but gpu_milli is 0"),
        (PODS + "p3,1,1,-1,500,,,\n", "line 5: num_gpu: -1 is not between"),
        (PODS + "p3,1" + "0" * 30 + ",1,1,500,,,\n", "line 5: cpu_milli: 10"),
        (PODS + "p3,1,1,1,500,,nan,\n", "line 5: creation_time: 'nan' is not a time"),
        (PODS + "p3,1,1,1,500,,-5,\n", "line 5: creation_time: '-5' is not a time"),
        (PODS + "p3,1,1,1,500,,noon,\n", "line 5: creation_time: 'noon' is not a time"),
        (PODS + "p3,1,1,1,500,,1767225600000,\n", "line 5: creation_time: '1767225600000' is not a time"),
        (PODS + "p3,1,1,1,0.5,,,\n", r"line 5: gpu_milli: '0.5' is not a whole number \(thousandths: half"),
        (PODS + "p3,1,1,0,500,,,\n", "line 5: num_gpu is 0, but gpu_milli is 500"),
        (PODS + "p3,1,1,65,500,,,\n", "line 5: num_gpu: 65 is not between 0 and 64"),
        (PODS + "p1,1,1,1,500,,,\n", "line 5: name 'p1' is also in line 3"),
        (PODS + ",1,1,1,500,,,\n", "line 5: name is empty"),
        (PODS + "p3,1,1,1,500,T4,,,,\n", "line 5: has too many cells"),
        (
            PODS + "p3,1,1,1,500,T40,,\n",
            r"no node has the model 'T40' \(did you mean 'T4'\?\); the nodes have P100",
        ),
        (PODS.replace(",", ";"), "line 1: columns are separated by semicolons; expected commas"),
        (PODS.replace(",", "\t"), "line 1: columns are separated by tabs"),
        (NODES, "line 1: these are the columns of --nodes, but the file was passed as --pods"),
        (
            PODS.replace("cpu_milli", "CPU_milli"),
            r"column 'cpu_milli' is missing \(did you mean 'CPU_milli'\?\)",
        ),
        (PODS.replace("gpu_spec", "name"), "line 1: a column is named twice"),
        (PODS + "p3,1,1,1,500,,9,8\n", "line 5: deletion_time 8 is before creation_time 9"),
        (PODS.split("p0")[0] + "p,1,1,0,0,,,\n", "no pod requests a GPU"),
        (PODS.split("p0")[0], "no pod requests a GPU"),
    ],
)
def test_a_broken_file_says_where(files, text, says):
    (files / "pods.csv").write_text(text)
    with pytest.raises(BadInput, match=says):
        read_pods(files / "pods.csv", read_nodes(files / "nodes.csv"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column 'sn' is missing"),
        (NODES.split("a,")[0], "no node has a GPU"),
        (NODES + "c,1,1,0,\nc,1,1,0,\n", "line 5: sn 'c' is also in line 4"),
        (NODES + "c,0,1,2,\n", "line 4: 2 GPUs, but cpu_milli is 0"),
        (NODES + "c,1,0,2,\n", "line 4: 2 GPUs, but memory_mib is 0"),
        (NODES + "c,-1,1,2,\n", "line 4: cpu_milli: -1 is not between"),
        (PODS, "line 1: these are the columns of --pods, but the file was passed as --nodes"),
        (NODES + "c,1,1,65,\n", "line 4: gpu: 65 is not between 0 and 64"),
    ],
)
def test_a_broken_list_of_nodes_says_where(files, text, says):
    (files / "nodes.csv").write_text(text)
    with pytest.raises(BadInput, match=says):
        read_nodes(files / "nodes.csv")


def test_a_file_from_a_spreadsheet_is_read(files):
    (files / "nodes.csv").write_text("\ufeff" + NODES.replace("\n", "\r\n"), encoding="utf-8")
    assert len(read_nodes(files / "nodes.csv")) == 2
