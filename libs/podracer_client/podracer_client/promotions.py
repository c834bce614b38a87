"""Promoting, rolling back, and the history of it: the calls that `Client` makes."""

from __future__ import annotations

import secrets

from podracer.orchestrator.v1 import job_service_pb2, job_service_pb2_grpc
from podracer_client.names import job_name

Promotion = job_service_pb2.Promotion

_PAGE_SIZE = 1000


def promote(
    jobs: job_service_pb2_grpc.JobServiceStub, job: str, policy: str, alias: str, reason: str
) -> job_service_pb2.Promotion:
    """Point an alias at a policy: an agent or a checkpoint by its name, an agent of `job` by its id, or the best."""
    name = job_name(job)
    request = job_service_pb2.PromotePolicyRequest(
        job=name,
        policy=policy if not policy or "/" in policy else f"{name}/agents/{policy}",
        alias=alias,
        reason=reason,
        request_id=secrets.token_hex(16),
    )
    return jobs.PromotePolicy(request).promotion


def roll_back(
    jobs: job_service_pb2_grpc.JobServiceStub, job: str, alias: str, reason: str
) -> job_service_pb2.Promotion:
    """Point an alias at what it pointed at before."""
    request = job_service_pb2.RollbackPolicyRequest(
        job=job_name(job), alias=alias, reason=reason, request_id=secrets.token_hex(16)
    )
    return jobs.RollbackPolicy(request).promotion


def history(jobs: job_service_pb2_grpc.JobServiceStub, job: str, alias: str) -> list[job_service_pb2.Promotion]:
    """Every decision about the aliases of a job, or about one of them, newest first."""
    request = job_service_pb2.ListPromotionsRequest(job=job_name(job), alias=alias, page_size=_PAGE_SIZE)
    found: list[job_service_pb2.Promotion] = []
    while True:
        response = jobs.ListPromotions(request)
        found.extend(response.promotions)
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token
