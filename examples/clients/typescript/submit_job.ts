// Submits a job, watches it to its end and prints its leaderboard: `npm start [TARGET RETURN]`; see ../README.md.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout } from "node:timers/promises";
import { ChannelCredentials, credentials, Metadata, ServiceError, status } from "@grpc/grpc-js";
import { TargetStatistic } from "./stubs/podracer/common/v1/evolution.js";
import { GetLeaderboardResponse, LeaderboardServiceClient } from "./stubs/podracer/leaderboard/v1/leaderboard_service.js";
import { Job, JobSpec, JobState, PodLayout } from "./stubs/podracer/orchestrator/v1/job.js";
import {
  CreateJobRequest, CreateJobResponse, JobServiceClient, WatchJobRequest, WatchJobResponse,
} from "./stubs/podracer/orchestrator/v1/job_service.js";

const spec = (target: number) =>
  JobSpec.fromPartial({
    displayName: "cartpole-typescript",
    environment: { id: "CartPole-v1" },
    objective: {
      targetReturn: target,
      statistic: TargetStatistic.TARGET_STATISTIC_MEAN,
      maxDuration: { seconds: 120n },
    },
    search: { algorithms: [{ algorithm: "ppo" }] },
    pod: { layout: PodLayout.POD_LAYOUT_FUSED, members: 8 },
  });

const variable = (name: string): string => {
  const value = process.env[name];
  if (!value) throw new Error(`set ${name}`);
  return value;
};

const folder = process.env.PODRACER_TLS;
const transport = (): ChannelCredentials => {
  if (!folder) return credentials.createInsecure();
  const [authority, key, certificate] = ["ca.pem", "key.pem", "cert.pem"].map((name) => readFileSync(join(folder, name)));
  return credentials.createSsl(authority, key, certificate);
};
/** The certificate of a server bears the name of its role, whatever its address. */
const named = (server: string) => ({ "grpc.ssl_target_name_override": `${server}.podracer` });

const metadata = new Metadata();
const readToken = () => readFileSync(variable("PODRACER_TOKEN_FILE"), "ascii").split(/\s/)[0];
metadata.set("authorization", `Bearer ${process.env.PODRACER_TOKEN || readToken()}`);
const jobs = new JobServiceClient(variable("PODRACER_ORCHESTRATOR"), transport(), named("orchestrator"));
const boards = new LeaderboardServiceClient(variable("PODRACER_LEADERBOARD"), transport(), named("leaderboard"));

/** Prints what happens to a job until it has ended; a lost connection is made anew, and no event is missed. */
async function watch(job: Job): Promise<Job> {
  let afterPosition = 0n;
  while (job.state < JobState.JOB_STATE_SUCCEEDED) {
    try {
      const request = WatchJobRequest.fromPartial({ name: job.name, afterPosition });
      for await (const update of jobs.watchJob(request, metadata) as AsyncIterable<WatchJobResponse>) {
        job = update.job!;
        for (const event of update.events) {
          afterPosition = event.position;
          console.log(event.kind, event.message);
        }
        console.log(JobState[job.state], `${job.progress!.liveEnvSteps}`);
      }
    } catch (error) {
      if ((error as ServiceError).code !== status.UNAVAILABLE) throw error;
    }
    await setTimeout(100);
  }
  return job;
}

const created = await new Promise<CreateJobResponse>((resolve, reject) =>
  jobs.createJob(
    CreateJobRequest.fromPartial({ spec: spec(Number(process.argv[2] ?? 475)) }),
    metadata,
    (error, response) => (error ? reject(error) : resolve(response)),
  ),
);
console.log("submitted", created.job!.name);
const job = await watch(created.job!);
const found = await new Promise<GetLeaderboardResponse>((resolve, reject) =>
  boards.getLeaderboard({ name: job.leaderboard }, metadata, (error, response) => (error ? reject(error) : resolve(response))),
);
for (const { rank, agent, evaluation } of found.leaderboard!.candidates) {
  console.log(rank, agent!.name, evaluation!.mean.toFixed(1));
}
if (job.state !== JobState.JOB_STATE_SUCCEEDED) throw new Error(`${JobState[job.state]}: ${job.problem?.message}`);
jobs.close();
boards.close();
