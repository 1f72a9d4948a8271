"""Trace files mean what they say, and every mistake in one names its file, line and column."""

from pathlib import Path

import pytest

from fairlead.control.simulation import never_fits, simulate
from fairlead.errors import InvalidSpec
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.traces.reading import read_trace
from fairlead.traces.writing import write_trace
from tests.simulation.worlds import pool


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_our_own_table_in_order_of_arrival(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# a comment\nsubmit_s,duration_s,name,team,nodes,gpu,cpu,memory,priority\n"
        "60,3600,second,vision,2,A100:4,8,64Gi,5\n"
        "0,10.5,,,,,,,\n",
    )
    first, second = read_trace(path)
    assert (first.at_s, first.duration_s, first.spec.name, first.num_gpus) == (0, 10.5, "run-2", 0)
    assert (second.spec.team, second.spec.nodes, second.spec.priority, second.num_gpus) == ("vision", 2, 5, 8)
    assert second.spec.resources.memory_bytes == 64 * 2**30


def test_the_same_name_twice_gets_a_number(tmp_path: Path) -> None:
    path = write(tmp_path, "submit_s,duration_s,name\n0,1,a\n1,1,a\n2,1,b\n")
    assert [arrival.spec.name for arrival in read_trace(path)] == ["a", "a-2", "b"]


def test_a_number_that_another_run_has_in_its_name_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, "submit_s,duration_s,name\n0,1,a\n1,1,a\n2,1,a-2\n3,1,a\n4,1,a-2\n")
    assert [arrival.spec.name for arrival in read_trace(path)] == ["a", "a-3", "a-2", "a-4", "a-2-2"]


def test_muri_counts_milliseconds_and_whole_nodes_of_eight(tmp_path: Path) -> None:
    header = "job_id,num_gpu,submit_time,iterations,model_name,duration,resource_time_0"
    path = write(tmp_path, f"{header}\n3,16,2000,10,bert,90000,1\n4,2,0,10,dqn,1000,1\n")
    small, large = read_trace(path)
    assert (small.at_s, small.duration_s, small.num_gpus, small.spec.nodes) == (0, 1, 2, 1)
    assert (large.at_s, large.duration_s, large.num_gpus, large.spec.nodes) == (2, 90, 16, 2)


def test_philly_counts_seconds(tmp_path: Path) -> None:
    (job,) = read_trace(write(tmp_path, "job_id,num_gpu,submit_time,duration\n1,0,5,7\n"))
    assert (job.at_s, job.duration_s, job.num_gpus) == (5, 7, 0)


def test_philly_names_jobs_and_teams_where_it_says_them(tmp_path: Path) -> None:
    rows = "vc,job_id,num_gpu,submit_time,duration,status\nee9e8c,application_1506638472019_10258,8,0,60,Pass\n"
    (job,) = read_trace(write(tmp_path, rows))
    assert (job.spec.team, job.spec.name, job.num_gpus) == ("ee9e8c", "job-application-1506638472019-10258", 8)


def test_our_own_table_says_what_starting_saving_and_sharing_cost(tmp_path: Path) -> None:
    header = "submit_s,duration_s,gpu,spot,checkpoint_every,start_up_s,checkpoint_s,save_s"
    stages = ",iteration_s,load_s,compute_s,communicate_s"
    (arrival,) = read_trace(write(tmp_path, f"{header}{stages}\n0,10,0.5,true,5m,90,4,20,1,0.2,0.7,0\n"))
    assert arrival.spec.capacity.spot
    assert arrival.spec.checkpoint.every_s == 300
    assert (arrival.start_up_s, arrival.checkpoint_s, arrival.save_s) == (90, 4, 20)
    assert arrival.profile == StageProfile(iteration_s=1, stages_s=(0.2, 0.7, 0))
    with pytest.raises(InvalidSpec, match="give all four, iteration_s above 0, or none"):
        read_trace(write(tmp_path, f"submit_s,duration_s{stages}\n0,1,1,,,\n"))
    with pytest.raises(InvalidSpec, match=r"trace.csv:2: capacity.spot: .maybe. is not true, false or auto"):
        read_trace(write(tmp_path, "submit_s,duration_s,spot\n0,1,maybe\n"))


def test_muri_says_what_iterations_are_made_of(tmp_path: Path) -> None:
    header = "job_id,num_gpu,submit_time,duration,iteration_time,resource_time_0,resource_time_1,resource_time_2"
    (job,) = read_trace(write(tmp_path, f"{header}\n0,1,0,1000,490,446,8,0\n"))
    assert job.profile is not None
    assert job.profile.iteration_s == pytest.approx(0.49)
    assert job.profile.stages_s == pytest.approx((0.446, 0.008, 0))


OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)


def test_openb_pods_take_shares_models_and_the_time_since_they_were_scheduled(tmp_path: Path) -> None:
    rows = "p-1,6000,12288,1,460,,LS,Running,10,100,20\np-2,500,1024,2,1000,T4|V100|V100,LS,Pending,30,90,\n"
    share, whole = read_trace(write(tmp_path, OPENB + rows + "p-3,1000,10,0,0,,BE,Running,40,50,40\n"))[:2]
    assert (share.at_s, share.duration_s, share.num_gpus, share.spec.name) == (10, 80, 0.46, "p-1")
    assert (share.spec.resources.cpu_milli, share.spec.resources.memory_bytes) == (6000, 12 * 2**30)
    assert (whole.at_s, whole.duration_s, whole.num_gpus) == (30, 60, 2)
    assert whole.spec.resources.gpu is not None
    assert whole.spec.resources.gpu.model == "T4|V100"


def test_a_pod_of_openb_that_ends_before_it_begins_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"trace\.csv:2: deletion_time: 5 is before scheduled_time, 20"):
        read_trace(write(tmp_path, OPENB + "p-1,6000,12288,1,460,,LS,Running,10,5,20\n"))


def test_shockwave_has_tabs_and_no_header(tmp_path: Path) -> None:
    line = "ResNet-18 (batch size 32)\tpython3 main.py\timages\t--num_steps\t1\t143450\t{}\taccordion\t1\t-1\t{}\t{}\n"
    first, second = read_trace(write(tmp_path, line.format(1, 3338, 55) + line.format(16, "900.5", 64), "jobs.trace"))
    assert (first.at_s, first.duration_s, first.num_gpus, first.spec.name) == (55, 3338, 1, "resnet-18")
    assert (second.duration_s, second.num_gpus, second.spec.nodes, second.spec.name) == (900.5, 16, 2, "resnet-18-2")
    with pytest.raises(InvalidSpec, match=r"jobs\.trace:3: duration: 'long' is not a number of 0 or more"):
        read_trace(write(tmp_path, line.format(1, 1, 1) + "\n" + line.format(1, "long", 1), "jobs.trace"))


def test_a_spec_file_is_a_trace_of_runs_that_say_how_long_they_take(tmp_path: Path) -> None:
    text = "name: a\nrun: x\nmax_duration: 2h\n---\nname: b\nrun: y\nmax_duration: 30s\n"
    assert [arrival.duration_s for arrival in read_trace(write(tmp_path, text, "runs.yaml"))] == [7200, 30]
    with pytest.raises(InvalidSpec, match="a: max_duration is missing, so nothing says how long it runs"):
        read_trace(write(tmp_path, "name: a\nrun: x\n", "runs.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("submit_s,duration_s\n", "there is no run in it"),
        ("a,b\n1,2\n", r"trace.csv:1: the header is a, b; a trace of ours has submit_s and duration_s"),
        ("", "the header is empty"),
        ("submit_s,duration_s,gpus\n1,2,3\n", "trace.csv:1: gpus: unknown column; allowed are submit_s"),
        ("submit_s,duration_s\n1,soon\n", "trace.csv:2: duration_s: 'soon' is not a number"),
        ("submit_s,duration_s\n1,1\n# more\n-1,2\n", "trace.csv:4: submit_s: '-1' is not a number of 0 or more"),
        ("submit_s,duration_s,nodes\n1,1,many\n", 'trace.csv:2: nodes: "many" is not a whole number'),
        ("submit_s,duration_s,gpu\n0,10,1,9\n", "trace.csv:2: it has 4 fields, and the header 3; leave a field empty"),
        ("submit_s,duration_s,gpu\n\n0,10\n", "trace.csv:3: it has 2 fields, and the header 3"),
        ("submit_s,gpu,duration_s,gpu\n0,1,10,2\n", "trace.csv:1: gpu: the header has this column twice"),
        ("submit_s;duration_s\n0;10\n", "trace.csv:1: the columns are separated by ';'; a trace has commas"),
        ("submit_s,duration_s\n0,1e30\n", "trace.csv:2: a duration of 1e.30 s is too long; give at most 3.1536e.08"),
        ('submit_s,duration_s\n0,"1,000"\n', "'1,000' is not a number of 0 or more; write 1000"),
        (
            "submit_s,duration_s\n2024-01-01T00:00:00Z,10\n",
            "is not a number of 0 or more; give seconds since any moment",
        ),
        ("submit_s,duration_s\n0,1:30:00\n", "is not a number of 0 or more; give seconds since any moment"),
        ("submit_s,duration_s,gpu\n1,1,A100:0\n", r"trace.csv:2: resources.gpu: "),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        read_trace(write(tmp_path, text))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be read as a trace: No such file or directory"):
        read_trace(tmp_path / "gone.csv")


def test_a_trace_says_what_a_node_may_cost_and_dearer_pools_stay_empty(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "submit_s,duration_s,gpu,max_price\n0,10,1,2.5\n0,10,1,\n"))
    assert [each.spec.capacity.max_price for each in trace] == [2.5, None]
    again = tmp_path / "again.csv"
    again.write_text(write_trace(trace))
    assert [each.spec for each in read_trace(again)] == [each.spec for each in trace]
    dear, cheap = pool("dear", nodes=1, gpus=4, price=8.0), pool("cheap", nodes=1, gpus=1, price=2.5)
    outcome = simulate(trace[:1], (dear, cheap))
    assert {each.node for each in outcome.pods} == {"cheap-0"}
    (never,) = never_fits(trace[:1], (dear,))
    assert "dear-0 is dearer than its `max_price`: $8.00 an hour, $2.50 at most" in never.message
