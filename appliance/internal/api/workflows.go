package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/planner"
)

// order reads an order to provision. What is protected is refused here already; the executor and the planner refuse it again.
func (s *Server) order(r *http.Request, op string, in Provision) (o executor.Order, m Machine, err error) {
	if m, err = s.seen(r, op, in.Version); err != nil {
		return o, m, err
	}
	if in.Reinstall {
		if err := s.need(r, auth.PermManage); err != nil {
			return o, m, err
		}
	}
	if m.Protected != nil {
		return o, m, workflowFault(op, m.Name, fmt.Errorf("%w: it is %s", executor.ErrProtected, m.Protected))
	}
	img, err := s.cfg.Images.Get(r.Context(), in.Image)
	if err != nil {
		return o, m, imageFault(op, m.Name, err)
	}
	sum, err := img.Digest()
	if err != nil {
		return o, m, imageFault(op, m.Name, err)
	}
	return executor.Order{Machine: m.Name, Image: planner.Image{Name: img.Name, ManifestSHA256: sum, RawSize: img.RawSize},
		PauseAfter: in.PauseAfter, Reinstall: in.Reinstall, By: by(r)}, m, nil
}

// counted holds an order against the number of disks that a person typed. Only this host's own command may leave it out: it asks a
// person by itself, and a script there has said which machine it means.
func counted(r *http.Request, op string, m *fleet.Machine, typed *int) error {
	disks := strings.Join(m.DiskSerials, ", ")
	if p, _ := auth.PrincipalOf(r.Context()); typed == nil && p.Kind == auth.KindLocal {
		return nil
	}
	if typed == nil {
		return fault.New(fault.Invalid, op, m.Name, fmt.Errorf("the number of disks that will be wiped is not said; they are %s", disks),
			"look at the machine and its disks, and say how many they are")
	}
	if *typed != len(m.DiskSerials) {
		return fault.New(fault.Conflict, op, m.Name, fmt.Errorf("%d disks were said, and %d would be wiped: %s", *typed, len(m.DiskSerials), disks),
			"look at the machine and its disks; nothing was sent")
	}
	return nil
}

func (s *Server) provision(r *http.Request) (any, error) {
	const op = "provision"
	in, err := asked[Provision](r, op, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	return s.begin(r, op, in)
}

// begin orders a workflow. An image that it names stays as long.
func (s *Server) begin(r *http.Request, op string, in Provision) (any, error) {
	s.inUse.RLock()
	defer s.inUse.RUnlock()
	defer s.act(r.PathValue("name"))()
	return s.beginLocked(r, op, in)
}

func (s *Server) beginLocked(r *http.Request, op string, in Provision) (any, error) {
	o, m, err := s.order(r, op, in)
	if err != nil {
		return nil, err
	}
	note(r, m.Name, fmt.Sprintf("image %s, disks %s", in.Image, strings.Join(m.DiskSerials, " ")))
	if err := counted(r, op, &m.Machine, in.Disks); err != nil {
		return nil, err
	}
	if _, err := s.cfg.Workflows.Provision(r.Context(), o); err != nil {
		return nil, workflowFault(op, o.Machine, err)
	}
	return s.show(r.Context(), op, o.Machine)
}

// retry orders what the newest workflow ended without: the same image, whose content has not changed, with the same pauses.
func (s *Server) retry(r *http.Request) (any, error) {
	const op = "retry"
	name := r.PathValue("name")
	in, err := asked[Retry](r, op, name)
	if err != nil {
		return nil, err
	}
	s.inUse.RLock()
	defer s.inUse.RUnlock()
	defer s.act(name)()
	m, err := s.seen(r, op, in.Version)
	if err != nil {
		return nil, err
	}
	w := m.Workflow
	if w == nil || w.State != fleet.WorkflowFailed && w.State != fleet.WorkflowCancelled {
		return nil, fault.New(fault.Conflict, op, name, fmt.Errorf("it is %s: there is no failed or cancelled workflow to begin again", m.State),
			"see `firstlight machine show "+name+"`; a first workflow begins with `firstlight provision "+name+" --image IMAGE`")
	}
	// Whoever names no version may think of the disks of the order that failed.
	for _, d := range m.DiskState {
		if in.Version == "" && d.Why == fleet.NotInNewest {
			return nil, fault.New(fault.Conflict, op, name, fmt.Errorf("disk %s was not among those of the workflow that ended: it was named since", d.Serial),
				"look at the disks; when they are all meant: firstlight provision "+name+" --image "+w.Image)
		}
	}
	img, err := s.cfg.Images.Get(r.Context(), w.Image)
	if err != nil {
		return nil, imageFault(op, name, err)
	}
	if img.ManifestSHA256 != w.ManifestSHA256 {
		return nil, fault.New(fault.Conflict, op, name, fmt.Errorf("image %s is another one now than the one that was being installed", w.Image),
			"say which one is meant: firstlight provision "+name+" --image "+w.Image)
	}
	return s.beginLocked(r, op, Provision{Image: w.Image, PauseAfter: w.PauseAfter, Disks: in.Disks, Version: m.Version})
}

func (s *Server) preview(r *http.Request) (any, error) {
	const op = "provision"
	in, err := asked[Provision](r, op, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	o, _, err := s.order(r, op, in)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Workflows.DryRun(r.Context(), o)
	if err != nil {
		return nil, workflowFault(op, o.Machine, err)
	}
	return p, nil
}

// acted is an Act, or nothing.
func acted(r *http.Request, op string) (Act, error) {
	if r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody {
		return Act{}, nil
	}
	return asked[Act](r, op, r.PathValue("name"))
}

func (s *Server) resume(r *http.Request) (any, error) {
	const op = "resume"
	in, err := acted(r, op)
	if err != nil {
		return nil, err
	}
	name := r.PathValue("name")
	defer s.act(name)()
	if _, err := s.seen(r, op, in.Version); err != nil {
		return nil, err
	}
	if err := s.cfg.Workflows.Resume(r.Context(), name, by(r)); err != nil {
		return nil, workflowFault(op, name, err)
	}
	return s.show(r.Context(), op, name)
}

// cancel answers when the workflow is over, or when the server ends. The order stands also when nobody waits for that.
func (s *Server) cancel(r *http.Request) (any, error) {
	const op = "cancel"
	name := r.PathValue("name")
	why, err := reason(r, op, name)
	if err != nil {
		return nil, err
	}
	note(r, name, why.Reason)
	if _, err := s.seen(r, op, why.Version); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(r.Context(), cancelTimeout)
	defer stop()
	defer context.AfterFunc(s.ending, stop)()
	err = s.cfg.Workflows.Cancel(ctx, name, by(r), why.Reason)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && s.ending.Err() == nil {
		return nil, workflowFault(op, name, err)
	}
	return s.show(r.Context(), op, name)
}

func reason(r *http.Request, op, name string) (Reason, error) {
	in, err := asked[Reason](r, op, name)
	if err == nil && len(in.Reason) > maxReason {
		err = longReason(op, name, in.Reason)
	}
	return in, err
}

func longReason(op, name, why string) error {
	return fault.New(fault.Invalid, op, name, fmt.Errorf("reason of %d bytes, want at most %d", len(why), maxReason), "say it shorter")
}

func (s *Server) stopAll(r *http.Request) (any, error) {
	const op = "stop all"
	why, err := reason(r, op, "")
	if err != nil {
		return nil, err
	}
	note(r, "", why.Reason)
	frozen, err := s.cfg.Workflows.StopAll(r.Context(), by(r), why.Reason)
	if err != nil {
		return nil, workflowFault(op, "", err)
	}
	stop, err := s.cfg.Fleet.Stop(r.Context())
	if err != nil {
		return nil, fault.Of(err, op, "")
	}
	text := "everything was stopped by " + by(r)
	if why.Reason != "" {
		text += ": " + why.Reason
	}
	s.emit(r, fleet.Event{Kind: "stopped.all", Fields: map[string]string{"workflows": fmt.Sprint(len(frozen))}, Message: text})
	return Stopped{Stop: stop, Workflows: frozen}, nil
}

func (s *Server) resumeAll(r *http.Request) (any, error) {
	const op = "resume all"
	thawed, err := s.cfg.Workflows.ResumeAll(r.Context(), by(r))
	if err != nil {
		return nil, workflowFault(op, "", err)
	}
	s.emit(r, fleet.Event{Kind: "resumed.all", Fields: map[string]string{"workflows": fmt.Sprint(len(thawed))}, Message: "everything goes on, by " + by(r)})
	return Stopped{Workflows: thawed}, nil
}

func (s *Server) protect(r *http.Request) (any, error) {
	const op = "protect machine"
	name := r.PathValue("name")
	why, err := reason(r, op, name)
	if err != nil {
		return nil, err
	}
	note(r, name, why.Reason)
	defer s.act(name)()
	if _, err := s.seen(r, op, why.Version); err != nil {
		return nil, err
	}
	rec, err := s.cfg.Fleet.Protect(r.Context(), name, by(r), why.Reason, s.cfg.Now())
	if err != nil {
		return nil, machineFault(op, name, err)
	}
	s.emit(r, fleet.Event{Machine: rec.Name, NodeID: rec.NodeID, Kind: "machine.protected", Message: "machine " + name + " is " + rec.Protected.String()})
	return s.show(r.Context(), op, name)
}

func (s *Server) unprotect(r *http.Request) (any, error) {
	const op = "unprotect machine"
	name := r.PathValue("name")
	in, err := acted(r, op)
	if err != nil {
		return nil, err
	}
	defer s.act(name)()
	if _, err := s.seen(r, op, in.Version); err != nil {
		return nil, err
	}
	rec, err := s.cfg.Fleet.Unprotect(r.Context(), name)
	if errors.Is(err, fleet.ErrNotProtected) {
		return nil, fault.New(fault.Conflict, op, name, err, "see `firstlight machine show "+name+"`")
	}
	if err != nil {
		return nil, machineFault(op, name, err)
	}
	s.emit(r, fleet.Event{Machine: rec.Name, NodeID: rec.NodeID, Kind: "machine.unprotected", Message: "machine " + name + " is not protected any more, by " + by(r)})
	return s.show(r.Context(), op, name)
}
