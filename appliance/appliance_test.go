package appliance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fleet"
	"firstlight/gateway-client/link"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/gateway-client/sealed"
	"firstlight/gateway-client/session"
	"firstlight/imagebuild/manifest"
)

// patience bounds each wait; starting includes an etcd member on a machine that may be busy.
const patience = 90 * time.Second

const password = "correct horse"

// start runs an appliance without its embedded site agent until the test ends, and holds it to its time to end.
func start(t *testing.T) *parts {
	t.Helper()
	return startObserved(t, nil)
}

func startObserved(t *testing.T, observe func(Write)) *parts {
	t.Helper()
	return startWith(t, "", func(c *Config) { c.Observe = observe })
}

// startWith is start with more sections of the configuration file and a changed Config.
func startWith(t *testing.T, sections string, change func(*Config)) *parts {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl") // short: a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, err := config.Parse(`
data_dir = "data"
socket = "s"
site_id = "site-a"
trust_domain = "firstlight.test"
[gateway]
listen = "127.0.0.1:0"
server_name = "gw.site-a.firstlight.test"
[boot]
enabled = false
http_advertise = "10.77.0.2:8080"
`+sections, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	cfg := Config{File: file, Ready: func() { close(ready) }, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	change(&cfg)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(endTimeout + time.Second):
			t.Errorf("run did not end within %v", endTimeout+time.Second)
		}
	})
	await(t, ready)
	return p
}

func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("nothing within %v", patience)
		return *new(T)
	}
}

func joinParams(t *testing.T, p *parts, token []byte) session.JoinParams {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return session.JoinParams{
		Link:           link.Config{URL: p.gatewayURL(), ServerName: p.cfg.File.Gateway.ServerName, SPKIPins: p.keys.ServingPins()},
		JoinSigningKey: p.keys.JoinSigner().Key.Public().(*ecdsa.PublicKey),
		Key:            key, Role: commonv1.AgentRole_AGENT_ROLE_SITE, Attestor: "join-token", NodeID: p.siteNode,
		Evidence: func(csr []byte) ([]byte, error) {
			jwe, err := sealed.Seal(&p.keys.JoinKey().PublicKey, sealed.TypJoin, sealed.JoinClaims{Secret: token, CSRSHA256: csr})
			return []byte(jwe), err
		},
	}
}

// siteAgent is an external site agent whose management controller is this test.
type siteAgent struct {
	passwords chan string
	leases    chan string
}

func (s *siteAgent) handlers() map[string]session.Handler {
	control := commonv1.Lane_LANE_CONTROL
	return map[string]session.Handler{
		"boot.prepareRamdisk": {Lane: control, Run: func(_ context.Context, c *session.Call) (proto.Message, error) {
			var in sitev1.PrepareRAMDisk
			if err := proto.Unmarshal(c.Payload, &in); err != nil {
				return nil, err
			}
			s.leases <- in.LeaseId
			return &sitev1.PrepareRAMDiskResult{LeaseId: in.LeaseId}, nil
		}},
		"bmc.bootOverride": {Lane: control, Run: func(_ context.Context, c *session.Call) (proto.Message, error) {
			return &sitev1.BMCBootOverrideResult{Device: "pxe", Once: true, Uefi: true}, nil
		}},
		"bmc.power": {Lane: control, Run: func(ctx context.Context, c *session.Call) (proto.Message, error) {
			var in sitev1.BMCPower
			if err := proto.Unmarshal(c.Payload, &in); err != nil {
				return nil, err
			}
			secret, err := c.Secret(ctx, in.Target.PasswordRef)
			if err != nil {
				return nil, err
			}
			s.passwords <- string(secret)
			return &sitev1.BMCPowerResult{State: "on"}, nil
		}},
	}
}

// The whole appliance is driven from both of its sides: a person's commands come in by the socket, an agent that joined with a
// one-time token takes signed orders over TLS and gets the controller's password sealed.
func TestSiteAgentCarriesOutAPersonsOrder(t *testing.T) {
	p := start(t)
	token, err := p.inviteSite()
	if err != nil {
		t.Fatal(err)
	}
	params := joinParams(t, p, token)
	id, err := session.Join(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Join(t.Context(), joinParams(t, p, token)); err == nil {
		t.Error("a second key joined with the same token")
	}
	s := &siteAgent{passwords: make(chan string, 1), leases: make(chan string, 1)}
	agent, err := session.New(session.Config{Link: params.Link, Identity: id, JoinSigningKey: params.JoinSigningKey, BootID: "boot-1",
		JournalPath: filepath.Join(t.TempDir(), "journal"), Handlers: s.handlers()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	defer func() { cancel(); await(t, ended) }()

	client := api.NewClient(p.cfg.File.Socket)
	order(t, client)
	await(t, s.leases)
	if got := await(t, s.passwords); got != password {
		t.Errorf("password at the controller: got %q, want the recorded one", got)
	}
	step := awaitStep(t, p, client, fleet.StepPowerOn)
	if step.State != fleet.StepDone || len(step.Commands) != 3 {
		t.Errorf("power-on: got %s with %d commands, want done with 3", step.State, len(step.Commands))
	}
	for _, c := range step.Commands {
		if c.State != fleet.CommandSucceeded || c.KeyID == "" {
			t.Errorf("%s: got %s signed by %q, want succeeded and a key id", c.Kind, c.State, c.KeyID)
		}
	}
	holdSecret(t, p)
}

func order(t *testing.T, client *api.Client) {
	t.Helper()
	_, err := client.AddMachine(t.Context(), api.AddMachine{Name: "m1", MACs: []string{"52:54:00:00:00:0a"}, DiskSerials: []string{"DISK0001"},
		BMCURL: "https://10.78.0.10", BMCUser: "admin", BMCPassword: password, BMCCertificateSHA256: strings.Repeat("ab", 32)})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	body, err := manifest.Manifest{Version: manifest.Version, Name: "empty", RawSize: 1 << 20, ChunkSize: 1 << 20}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AddImage(t.Context(), api.AddImage{Name: "empty", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Provision(t.Context(), "m1", api.Provision{Image: "empty"}); err != nil {
		t.Fatal(err)
	}
}

// awaitStep follows the store until the step of m1's workflow has ended.
func awaitStep(t *testing.T, p *parts, client *api.Client, name string) fleet.Step {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	changes, err := p.store.Watch(ctx, "workflows/")
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := client.Machine(ctx, "m1")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range m.Workflow.Steps {
			if s.Name == name && s.State.Ended() {
				return s
			}
		}
		if _, ok := <-changes; !ok {
			t.Fatalf("step %s did not end within %v", name, patience)
		}
	}
}

// holdSecret: the password is neither in the store nor in any file, but for what the vault sealed.
func holdSecret(t *testing.T, p *parts) {
	t.Helper()
	entries, err := p.store.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	sealed := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Key, secretsPrefix) {
			sealed++
		}
		if bytes.Contains(e.Value, []byte(password)) {
			t.Errorf("the password is readable under %s", e.Key)
		}
	}
	if sealed != 1 {
		t.Errorf("got %d sealed values, want 1", sealed)
	}
}

func TestOneApplianceOnAData(t *testing.T) {
	p := start(t)
	unlock, err := lock(filepath.Join(p.cfg.File.DataDir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	second, err := New(Config{File: p.cfg.File})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another appliance runs on it") {
		t.Errorf("got %v, want words about the other appliance", err)
	}
}

func TestSiteKeepsItsName(t *testing.T) {
	p := start(t)
	again, err := p.siteID(t.Context())
	if err != nil || again != p.siteNode || !strings.HasPrefix(string(again), "site-") {
		t.Errorf("got %q, %v, want %q", again, err, p.siteNode)
	}
}

func TestAddresses(t *testing.T) {
	if got := fmt.Sprint(servingIPs("10.77.0.2:8443", "gw.example:8443", "0.0.0.0:1")); got != "[10.77.0.2]" {
		t.Errorf("serving addresses: got %s, want [10.77.0.2]", got)
	}
	p := start(t)
	if got, want := p.dialAddr(), p.listener.Addr().String(); got != want {
		t.Errorf("dial address: got %s, want %s", got, want)
	}
}

// A judge sees every write before it is made and when it is durable, in the order in which they are made.
func TestObserve(t *testing.T) {
	seen := make(chan Write, 256)
	p := startObserved(t, func(w Write) { seen <- w })
	if _, err := p.fleet.AddMachine(t.Context(), fleet.Spec{Name: "m1", MACs: []string{"52:54:00:00:00:01"}, DiskSerials: []string{"S1"},
		BMCURL: "https://10.0.0.1", BMCUser: "u", BMCPassword: fleet.Secret("p"), BMCCertificateSHA256: make([]byte, 32)}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Write{{Key: "secrets/bmc/m1"}, {"secrets/bmc/m1", true}, {Key: "machines/m1"}, {"machines/m1", true}} {
		for got := await(t, seen); got != want; got = await(t, seen) {
		}
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load("nowhere.toml"); err == nil {
		t.Error("got no error for a file that is not there, want one")
	}
}
