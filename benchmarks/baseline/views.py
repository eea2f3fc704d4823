"""The HTTP door: validate, write two rows in a transaction, send the task after commit."""

from functools import partial

from django.db import transaction
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.baseline.models import Job, JobEvent
from benchmarks.baseline.tasks import write_entry


class EntryRequest(serializers.Serializer):
    note = serializers.CharField(max_length=200)
    amount = serializers.IntegerField(min_value=0)


class Entries(APIView):
    def post(self, request: Request) -> Response:
        serializer = EntryRequest(data=request.data)
        serializer.is_valid(raise_exception=True)
        with transaction.atomic():
            job = Job.objects.create(user=request.user, payload=serializer.validated_data)
            JobEvent.objects.create(job=job, name="accepted")
            arguments = {"user_id": request.user.pk, **serializer.validated_data}
            transaction.on_commit(partial(write_entry.apply_async, kwargs=arguments))
        return Response(
            {"id": job.id, "status": "accepted", "created_at": job.created_at},
            status=202,
            headers={"Location": f"/v1/jobs/{job.id}"},
        )
