package api

import (
	"net/http"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// table is everything that can be asked: the mux and the description are both made of it.
func (s *Server) table() []route {
	return append(append(append(s.machineRoutes(), s.workflowRoutes()...), s.imageRoutes()...), s.siteRoutes()...)
}

func (s *Server) machineRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/machines", id: "list machines", says: "One page of machines, with counts and those that need a person.", perm: auth.PermRead,
			out: MachinePage{}, do: s.listMachines, params: []param{
				{"q", "Found in serial, MAC in any notation, name, place, image, state, UUID or node id."},
				{"state", "States separated by commas; also need and working."}, {"view", "row or full."},
				{"sort", "name, place, state, since, image or changed; with - before it descending."},
				{"limit", "1 to 500, of whole machines 1 to 200."}, {"cursor", "The next of the page before."}}},
		{method: "POST", path: "/v1/machines", id: "add machine", says: "Add, adopt or (with from) enrol a machine. What is no enrolment needs the permission to manage.",
			perm: auth.PermEnrol, in: AddMachine{}, out: Machine{}, do: s.addMachine,
			example: `{"name":"r12u04","macs":["52:54:00:00:00:0a"],"disk_serials":["S4X0001"],"bmc_url":"https://10.0.0.4","bmc_user":"admin","bmc_password":"…","bmc_certificate_sha256":"0000000000000000000000000000000000000000000000000000000000000001","place":"rack 12 unit 4"}`},
		{method: "GET", path: "/v1/machines/{name}", id: "show machine", says: "One machine with everything that is shown of it.", perm: auth.PermRead, out: Machine{}, do: s.showMachine},
		{method: "PATCH", path: "/v1/machines/{name}", id: "set machine", says: "Change what a person said about a machine.", perm: auth.PermManage, in: SetMachine{},
			out: Machine{}, do: s.setMachine, example: `{"place":"rack 12 unit 5","version":"4f2a…"}`},
		{method: "DELETE", path: "/v1/machines/{name}", id: "remove machine", says: "Forget a machine; nothing is done to it.", perm: auth.PermManage, out: Removed{},
			do: s.removeMachine, params: []param{{"version", "The machine's version as it was shown."}}},
		{method: "GET", path: "/v1/machines/{name}/timeline", id: "show timeline", says: "What happened to a machine, newest first.", perm: auth.PermRead, out: TimelinePage{},
			do: s.timeline, params: []param{{"limit", "1 to 500."}, {"before", "The before of the page before."}}},
		{method: "GET", path: "/v1/machines/{name}/log", id: "show log", says: "What a machine's agents said, oldest first; with follow as server-sent events.", perm: auth.PermRead,
			out: []LogLine{}, stream: s.log, kind: "application/json", params: []param{{"limit", "1 to 500."}, {"follow", "true goes on with it."}}},
		{method: "GET", path: "/v1/discovered", id: "list discovered machines", says: "The machines that booted here and are nobody's yet.", perm: auth.PermRead,
			out: []fleet.Machine{}, do: s.listDiscovered},
		{method: "GET", path: "/v1/events", id: "list events", says: "The newest events, oldest of them first.", perm: auth.PermRead, out: []fleet.Event{}, do: s.events,
			params: []param{{"machine", "Only of this machine."}, {"limit", "1 to 1000."}}},
		{method: "GET", path: "/v1/watch", id: "watch machines", says: "Every change, as server-sent events whose data is a Change.", perm: auth.PermRead, out: Change{},
			stream: s.watch, kind: "text/event-stream", params: []param{{"machine", "Only of this machine."}, {"after", "Where to go on, as Last-Event-ID."}}},
	}
}

func (s *Server) workflowRoutes() []route {
	m := "/v1/machines/{name}/"
	return []route{
		{method: "POST", path: m + "provision", id: "provision", says: "Wipe a machine's recorded disks and install an image. Reinstalling needs the permission to manage.",
			perm: auth.PermProvision, in: Provision{}, out: Machine{}, do: s.provision, example: `{"image":"debian-12","disks":1,"version":"4f2a…"}`},
		{method: "POST", path: m + "preview", id: "preview", says: "What an order to provision would do. Nothing is sent.", perm: auth.PermProvision, in: Provision{},
			out: executor.Preview{}, do: s.preview, quiet: true, example: `{"image":"debian-12"}`},
		{method: "POST", path: m + "retry", id: "retry", says: "Begin the failed or cancelled workflow's order again.", perm: auth.PermRepair, in: Retry{}, out: Machine{},
			do: s.retry, example: `{"disks":1,"version":"4f2a…"}`},
		{method: "POST", path: m + "resume", id: "resume", says: "Let a paused workflow go on.", perm: auth.PermRepair, in: Act{}, out: Machine{}, do: s.resume, example: `{}`},
		{method: "POST", path: m + "cancel", id: "cancel", says: "End a machine's workflow. Answers when it is over.", perm: auth.PermRepair, in: Reason{}, out: Machine{},
			do: s.cancel, example: `{"reason":"wrong rack"}`},
		{method: "POST", path: m + "adopt", id: "adopt machine", says: "Take over a machine that runs: it is protected from then on.", perm: auth.PermManage, in: Adopt{},
			out: Machine{}, do: s.adopt, example: `{"name":"db7","reason":"customer data"}`},
		{method: "POST", path: m + "protect", id: "protect machine", says: "Let no workflow touch a machine's disks.", perm: auth.PermManage, in: Reason{}, out: Machine{},
			do: s.protect, example: `{"reason":"customer data"}`},
		{method: "POST", path: m + "unprotect", id: "unprotect machine", says: "End the protection.", perm: auth.PermManage, in: Act{}, out: Machine{}, do: s.unprotect, example: `{}`},
		{method: "POST", path: "/v1/stop", id: "stop all", says: "Freeze every workflow at its next safe point.", perm: auth.PermManage, in: Reason{}, out: Stopped{},
			do: s.stopAll, example: `{"reason":"smoke"}`},
		{method: "POST", path: "/v1/resume", id: "resume all", says: "Let everything go on.", perm: auth.PermManage, out: Stopped{}, do: s.resumeAll},
	}
}

func (s *Server) imageRoutes() []route {
	u := "/v1/uploads/{id}"
	return []route{
		{method: "GET", path: "/v1/images", id: "list images", says: "All images.", perm: auth.PermRead, out: []images.Image{}, do: s.listImages},
		{method: "POST", path: "/v1/images", id: "add image", says: "Take an image from a directory of the appliance's host; only for its own command.", perm: auth.PermManage,
			in: AddImage{}, out: images.Image{}, do: s.addImage, example: `{"name":"debian-12","dir":"/srv/images/debian-12"}`},
		{method: "DELETE", path: "/v1/images/{name}", id: "remove image", says: "Forget an image that no open workflow uses.", perm: auth.PermManage, out: Removed{}, do: s.removeImage},
		{method: "POST", path: "/v1/uploads", id: "begin upload", says: "Begin to send an image, or go on with it; the manifest is base64.", perm: auth.PermManage,
			in: BeginUpload{}, out: Upload{}, do: s.beginUpload, limit: maxManifest, example: `{"name":"debian-12","manifest":"e30="}`},
		{method: "GET", path: u, id: "show upload", says: "How far an upload is.", perm: auth.PermManage, out: Upload{}, do: s.showUpload},
		{method: "PUT", path: u + "/blobs/{sha256}", id: "put blob", says: "Send one of the missing blobs as it is.", perm: auth.PermManage, in: []byte{}, out: Upload{},
			do: s.putBlob, limit: maxBlob, quiet: true},
		{method: "POST", path: u + "/finish", id: "finish upload", says: "Read every blob back and make it an image.", perm: auth.PermManage, out: images.Image{}, do: s.finishUpload},
		{method: "DELETE", path: u, id: "drop upload", says: "Forget an upload.", perm: auth.PermManage, out: Removed{}, do: s.dropUpload},
	}
}

func (s *Server) siteRoutes() []route {
	return []route{
		{method: "GET", path: "/v1/health", id: "check health", says: "What the doctor finds.", perm: auth.PermRead, out: Health{}, do: s.showHealth},
		{method: "GET", path: "/v1/users", id: "list users", says: "The accounts.", perm: auth.PermAdmin, out: []User{}, do: s.listUsers},
		{method: "POST", path: "/v1/users", id: "add user", says: "Make an account.", perm: auth.PermAdmin, in: AddUser{}, out: User{}, do: s.addUser,
			example: `{"name":"anna","role":"technician","password":"…"}`},
		{method: "PATCH", path: "/v1/users/{name}", id: "set user", says: "Change an account's role or password, which ends its sessions.", perm: auth.PermAdmin,
			in: SetUser{}, out: User{}, do: s.setUser, example: `{"role":"operator"}`},
		{method: "DELETE", path: "/v1/users/{name}", id: "remove user", says: "Remove an account.", perm: auth.PermAdmin, out: Removed{}, do: s.removeUser},
		{method: "GET", path: "/v1/tokens", id: "list tokens", says: "The API's tokens, without their values.", perm: auth.PermAdmin, out: []Token{}, do: s.listTokens},
		{method: "POST", path: "/v1/tokens", id: "make token", says: "Make a token; its value is in this answer and nowhere else.", perm: auth.PermAdmin, in: MintToken{},
			out: MintedToken{}, do: s.mintToken, once: true, example: `{"name":"ci-7","role":"operator","life_s":86400}`},
		{method: "DELETE", path: "/v1/tokens/{name}", id: "revoke token", says: "End a token.", perm: auth.PermAdmin, out: Removed{}, do: s.revokeToken},
		{method: "GET", path: "/v1/audit", id: "show audit log", says: "Who did what, newest first.", perm: auth.PermAdmin, out: AuditPage{}, do: s.showAudit,
			params: []param{{"limit", "1 to 500."}, {"before", "The before of the page before."}}},
		{method: "POST", path: "/v1/join-tokens", id: "make join token", says: "Make a one-time token with which a site agent joins.", perm: auth.PermAdmin, in: MintJoin{},
			out: JoinToken{}, do: s.mintJoin, once: true, example: `{"life_s":600}`},
		{method: "GET", path: "/v1/openapi.json", id: "describe the API", says: "This description.", perm: auth.PermRead, out: map[string]any{}, do: s.describe},
		{method: "GET", path: "/metrics", id: "metrics", says: "Numbers about the site, in Prometheus's format.", perm: auth.PermRead, stream: s.metrics, kind: "text/plain"},
	}
}

// metrics answers a scrape: the one route whose answer is not ours to word.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	if s.cfg.Metrics == nil {
		return missing("metrics", "metrics")
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.cfg.Metrics.ServeHTTP(w, r)
	return nil
}

func (s *Server) describe(*http.Request) (any, error) {
	doc, err := s.openapi()
	if err != nil {
		return nil, fault.Of(err, "describe the API", "")
	}
	return doc, nil
}
