"""A rule of a company: every job has a tag that says who pays."""

from smlaunch.errors import Problem
from smlaunch.planner.plan_context import PlanContext
from smlaunch.planner.rules.rule import Problems, rule


@rule(
    "tags.cost-center",
    summary="a job without the tag cost-center",
    source="https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_Tag.html",
    quote="Each tag consists of a key and an optional value.",
    fields=("tags",),
)
def reject_jobs_without_cost_center(context: PlanContext) -> Problems:
    if "cost-center" not in context.job.tags:
        yield Problem("tags", 'a tag cost-center is needed, such as cost-center: "4711"')
