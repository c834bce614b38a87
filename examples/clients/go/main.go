// Submits a job, watches it to its end and prints its leaderboard: `go run . [TARGET RETURN]`; see ../README.md.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/podracer-rl/podracer/go/common/v1"
	leaderboardv1 "github.com/podracer-rl/podracer/go/leaderboard/v1"
	orchestratorv1 "github.com/podracer-rl/podracer/go/orchestrator/v1"
)

func spec(target float64) *orchestratorv1.JobSpec {
	return &orchestratorv1.JobSpec{
		DisplayName: "cartpole-go",
		Environment: &commonv1.EnvironmentSpec{Id: "CartPole-v1"},
		Objective: &commonv1.Objective{
			TargetReturn: proto.Float64(target),
			Statistic:    commonv1.TargetStatistic_TARGET_STATISTIC_MEAN,
			MaxDuration:  durationpb.New(2 * time.Minute),
		},
		Search: &commonv1.Search{Algorithms: []*commonv1.AlgorithmShare{{Algorithm: "ppo"}}},
		Pod:    &orchestratorv1.PodShape{Layout: orchestratorv1.PodLayout_POD_LAYOUT_FUSED, Members: 8},
	}
}

// token goes with every call. Without TLS it may only go to this machine.
type token struct {
	text   string
	hasTLS bool
}

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + t.text}, nil
}

func (t token) RequireTransportSecurity() bool { return t.hasTLS }

func readToken() (string, error) {
	if text := os.Getenv("PODRACER_TOKEN"); text != "" {
		return text, nil
	}
	content, err := os.ReadFile(os.Getenv("PODRACER_TOKEN_FILE"))
	if err != nil {
		return "", err
	}
	return strings.Fields(string(content))[0], nil
}

// connect opens a channel; the certificate of a server bears the name of its role, whatever its address.
func connect(server string) (*grpc.ClientConn, error) {
	transport, folder := insecure.NewCredentials(), os.Getenv("PODRACER_TLS")
	if folder != "" {
		authority, err := os.ReadFile(filepath.Join(folder, "ca.pem"))
		if err != nil {
			return nil, err
		}
		own, err := tls.LoadX509KeyPair(filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem"))
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority)
		transport = credentials.NewTLS(&tls.Config{
			RootCAs: roots, Certificates: []tls.Certificate{own}, ServerName: server + ".podracer",
		})
	}
	text, err := readToken()
	if err != nil {
		return nil, err
	}
	bearer := grpc.WithPerRPCCredentials(token{text, folder != ""})
	address := os.Getenv("PODRACER_" + strings.ToUpper(server))
	return grpc.NewClient(address, grpc.WithTransportCredentials(transport), bearer)
}

// watch prints what happens to a job until it has ended; a lost connection is made anew, and no event is missed.
func watch(ctx context.Context, jobs orchestratorv1.JobServiceClient, job *orchestratorv1.Job) (*orchestratorv1.Job, error) {
	var position int64
	for job.State < orchestratorv1.JobState_JOB_STATE_SUCCEEDED {
		request := &orchestratorv1.WatchJobRequest{Name: job.Name, AfterPosition: position}
		stream, err := jobs.WatchJob(ctx, request)
		for err == nil {
			var update *orchestratorv1.WatchJobResponse
			if update, err = stream.Recv(); err != nil {
				break
			}
			job = update.Job
			for _, event := range update.Events {
				position = event.Position
				fmt.Println(event.Kind, event.Message)
			}
			fmt.Println(job.State, job.Progress.LiveEnvSteps)
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Unknown { // Unknown: the stream has ended
			return job, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return job, nil
}

func run(ctx context.Context, target float64) error {
	orchestrator, err := connect("orchestrator")
	if err != nil {
		return err
	}
	defer orchestrator.Close()
	leaderboard, err := connect("leaderboard")
	if err != nil {
		return err
	}
	defer leaderboard.Close()

	jobs := orchestratorv1.NewJobServiceClient(orchestrator)
	created, err := jobs.CreateJob(ctx, &orchestratorv1.CreateJobRequest{Spec: spec(target)})
	if err != nil {
		return err
	}
	fmt.Println("submitted", created.Job.Name)
	job, err := watch(ctx, jobs, created.Job)
	if err != nil {
		return err
	}
	request := &leaderboardv1.GetLeaderboardRequest{Name: job.Leaderboard}
	found, err := leaderboardv1.NewLeaderboardServiceClient(leaderboard).GetLeaderboard(ctx, request)
	if err != nil {
		return err
	}
	for _, candidate := range found.Leaderboard.Candidates {
		fmt.Printf("%d %s %.1f\n", candidate.Rank, candidate.Agent.Name, candidate.Evaluation.Mean)
	}
	if job.State != orchestratorv1.JobState_JOB_STATE_SUCCEEDED {
		return fmt.Errorf("%s: %s", job.State, job.Problem.GetMessage())
	}
	return nil
}

func main() {
	target := 475.0
	if len(os.Args) > 1 {
		var err error
		if target, err = strconv.ParseFloat(os.Args[1], 64); err != nil {
			log.Fatal(err)
		}
	}
	if err := run(context.Background(), target); err != nil {
		log.Fatal(err)
	}
}
